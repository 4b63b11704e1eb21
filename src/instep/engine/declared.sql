-- The rows that say what is derived from what: instep.source, instep.derivation, instep.target.

-- name: read_source
-- A table is held by its OID; the recorded name stands in only where the table is gone.
select s.name, s.relation, coalesce(n.nspname, s.schema_name), coalesce(c.relname, s.table_name), s.key, s.parts
from instep.source as s
left join pg_catalog.pg_class as c on c.oid = s.relation
left join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where s.name = %(name)s

-- name: source_names
select name from instep.source order by name

-- name: source_of_relation
select name from instep.source where relation = %(oid)s order by name

-- name: read_declarations
select name, bit, watch, hash, eligible, newest, catalogue, options
from instep.derivation where source = %(source)s order by bit

-- name: source_of_derivation
select source from instep.derivation where name = %(name)s

-- name: derivation_names
select name from instep.derivation order by name

-- name: read_targets
-- The reading one first, retired ones last.
select id, derivation, target, state, spec from instep.target where derivation = %(derivation)s
order by array_position(array['reading', 'filling', 'kept', 'retired'], state), id

-- name: reading_ids
select id from instep.target where source = %(source)s and state = 'reading' order by id

-- name: write_source
insert into instep.source (name, relation, schema_name, table_name, key, parts)
values (%(name)s, %(oid)s, %(schema)s, %(table)s, %(key)s, %(parts)s::text[])
on conflict (name) do update set relation = excluded.relation, schema_name = excluded.schema_name,
    table_name = excluded.table_name, key = excluded.key, parts = excluded.parts

-- name: write_declaration
-- What is computed or what is eligible differs: everything has to be looked at again.
insert into instep.derivation as d (name, source, bit, catalogue, watch, eligible, hash, newest, options)
values (%(name)s, %(source)s, %(bit)s, %(catalogue)s, %(watch)s, %(eligible)s, %(hash)s, %(newest)s, %(options)s)
on conflict (name) do update set catalogue = excluded.catalogue, watch = excluded.watch,
    eligible = excluded.eligible, hash = excluded.hash, newest = excluded.newest, options = excluded.options,
    sweep_due = case when (d.watch, d.eligible, d.hash, d.newest)
            is distinct from (excluded.watch, excluded.eligible, excluded.hash, excluded.newest)
        then 'declaration changed at ' || clock_timestamp()::text else d.sweep_due end

-- name: write_target
-- The first target of a derivation is the one that is read.
insert into instep.target (derivation, source, bit, target, state, spec)
select d.name, d.source, d.bit, %(target)s,
    case when exists (select from instep.target as t where t.derivation = d.name and t.state = 'reading')
        then 'filling' else 'reading' end, %(spec)s
from instep.derivation as d where d.name = %(derivation)s
on conflict (derivation, target) do nothing
returning id
