-- The epochs of indexes outside PostgreSQL (database/migrations/0002_search.sql).

-- name: epochs
select epoch, intended from instep.index_epoch where derivation = %(derivation)s and target = %(target)s

-- name: begin
insert into instep.index_epoch as e (derivation, target, epoch, intended)
values (%(derivation)s, %(target)s, %(epoch)s, %(epoch)s)
on conflict (derivation, target) do update set epoch = excluded.epoch, intended = excluded.intended

-- name: intend
-- No row: what the index holds is not what the database knows.
update instep.index_epoch set epoch = %(current)s, intended = %(next)s
where derivation = %(derivation)s and target = %(target)s and %(current)s in (epoch, intended)
returning 1

-- name: forget
delete from instep.index_epoch where derivation = %(derivation)s and target = %(target)s
