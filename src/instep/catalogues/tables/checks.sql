-- name: stands
select to_regclass(%(table)s) is not null

-- name: epochs
select epoch, intended from instep.index_epoch where derivation = %(derivation)s and target = %(target)s
