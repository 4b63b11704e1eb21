-- Tables and indexes of outputs, as they are now.

-- name: stands
select to_regclass(%(table)s) is not null,
    exists (select from pg_index where indrelid = to_regclass(%(table)s) and indisprimary),
    coalesce((select jsonb_object_agg(o.option_name, o.option_value)
        from pg_class as c, pg_options_to_table(c.reloptions) as o where c.oid = to_regclass(%(table)s)), '{{}}')

-- name: has_words_index
select exists (
    select from pg_index as i join pg_class as c on c.oid = i.indexrelid join pg_am as m on m.oid = c.relam
    where i.indrelid = to_regclass(%(table)s) and m.amname = 'gin')

-- name: epochs
select epoch, intended from instep.index_epoch where derivation = %(derivation)s and target = %(target)s

-- name: add_key
alter table {table} add primary key ({key})

-- name: set_options
alter table {table} set ({options})
