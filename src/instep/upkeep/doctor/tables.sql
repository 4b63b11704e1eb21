-- instep's own tables, as the catalogues of PostgreSQL have them.

-- name: setting
select current_setting(%(name)s)

-- name: switched_off
select n.nspname, c.relname
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = 'instep' and c.relkind = 'r'
    and exists (select from pg_options_to_table(c.reloptions) as o
        where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean)
order by 2

-- name: dead
-- Dead rows beyond `behind` times what makes a vacuum due by this table's own settings.
select d.nspname, d.relname, d.n_dead_tup, d.due::bigint
from (
    select n.nspname, c.relname, s.n_dead_tup,
        coalesce((select o.option_value from pg_options_to_table(c.reloptions) as o
            where o.option_name = 'autovacuum_vacuum_threshold'), current_setting('autovacuum_vacuum_threshold'))::float8
        + coalesce((select o.option_value from pg_options_to_table(c.reloptions) as o
            where o.option_name = 'autovacuum_vacuum_scale_factor'), current_setting('autovacuum_vacuum_scale_factor'))::float8
        * greatest(c.reltuples, 0) as due
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace join pg_stat_all_tables as s on s.relid = c.oid
    where n.nspname = 'instep' and c.relkind = 'r'
) as d
where d.n_dead_tup > greatest(%(least)s, %(behind)s * d.due)
order by d.n_dead_tup desc

-- name: standing
-- Our tables and indexes; an index that is being built at this moment counts as valid.
select c.relname, c.relkind::text, coalesce(i.indisvalid, true)
    or exists (select from pg_stat_progress_create_index as p where p.relid = i.indrelid)
from pg_class as c left join pg_index as i on i.indexrelid = c.oid
where c.relnamespace = 'instep'::regnamespace and c.relkind in ('r', 'i')
order by 1

-- name: options
select c.relname, coalesce((select jsonb_object_agg(o.option_name, o.option_value)
    from pg_options_to_table(c.reloptions) as o), '{{}}')
from pg_class as c where c.relnamespace = 'instep'::regnamespace and c.relkind = 'r'

-- name: autovacuum_on
alter system set autovacuum = on

-- name: track_counts_on
alter system set track_counts = on

-- name: reload
select pg_reload_conf()

-- name: table_on
alter table {table} reset (autovacuum_enabled)

-- name: vacuum
vacuum (analyze) {table}

-- name: reindex
reindex index concurrently {index}

-- name: drop_index
drop index concurrently {index}

-- name: set_options
alter table {table} set ({options})
