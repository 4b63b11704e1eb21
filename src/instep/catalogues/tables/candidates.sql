-- name: candidates
-- Names are quoted as SQL wants them, so that they can be given back as they are.
select format('%%I.%%I', n.nspname, c.relname), c.reltuples::bigint, s.name, a.columns
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join instep.source s on s.relation = c.oid
cross join lateral (
    select jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
            'text', t.typcategory = 'S') order by a.attnum) as columns,
        bool_or(t.typcategory = 'S') as has_text
    from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) a
where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence <> 't'
    and n.nspname not in ('pg_catalog', 'information_schema', 'instep') and n.nspname not like 'pg\_%%'
    and a.has_text and has_table_privilege(c.oid, 'select') and has_schema_privilege(n.oid, 'usage')
    and exists (select from pg_catalog.pg_constraint p where p.conrelid = c.oid and p.contype = 'p')
order by 1 limit %(limit)s
