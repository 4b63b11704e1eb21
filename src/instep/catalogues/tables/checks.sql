-- Tables and indexes of outputs, as they are now.

-- name: stands
select to_regclass(%(table)s) is not null,
    exists (select from pg_index where indrelid = to_regclass(%(table)s) and indisprimary)

-- name: has_words_index
select exists (
    select from pg_index as i join pg_class as c on c.oid = i.indexrelid join pg_am as m on m.oid = c.relam
    where i.indrelid = to_regclass(%(table)s) and m.amname = 'gin')

-- name: epochs
select epoch, intended from instep.index_epoch where derivation = %(derivation)s and target = %(target)s

-- name: add_key
alter table {table} add primary key ({key})
