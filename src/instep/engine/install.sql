-- Sources and targets as rows, and what is asked of the user's table.

-- name: lock
-- One installation or removal at a time.
select pg_advisory_xact_lock(hashtextextended('instep.install', 0))

-- name: seen
-- What the table looks like now: tells later that a column was retyped, a partition attached.
update instep.source set columns = %(columns)s, partitions = %(partitions)s::oid[], template = %(template)s
where name = %(name)s

-- name: recorded
select relation, schema_name, table_name, columns, partitions, template,
    (select count(*) from instep.marker as m where m.source = s.name and m.kind = 'suspect'
        and m.seq > coalesce((select min(d.swept_marker) from instep.derivation as d where d.source = s.name), 0)),
    (select max(m.seq) from instep.marker as m where m.source = s.name and m.kind = 'suspect')
from instep.source as s where s.name = %(name)s

-- name: located
-- Where the source's table is: by its OID; else the one that bears our triggers (a restored database has new OIDs).
-- A parent whose own trigger was dropped is known by its partitions'.
with bearing as (
    select t.tgrelid as oid from pg_catalog.pg_trigger as t join pg_catalog.pg_proc as p on p.oid = t.tgfoid
    where p.pronamespace = 'instep'::regnamespace and p.proname = %(function)s),
candidate as (
    select oid from bearing
    union select i.inhparent from bearing join pg_catalog.pg_inherits as i on i.inhrelid = bearing.oid)
select c.oid, n.nspname, c.relname, pg_catalog.row_security_active(c.oid)
from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and (c.oid = %(oid)s::oid or c.oid in (select oid from candidate))
order by (c.oid in (select oid from candidate)) desc, c.oid = %(oid)s::oid desc,
    exists (select from pg_catalog.pg_inherits as i where i.inhrelid = c.oid), c.oid
limit 1

-- name: relocate
update instep.source set relation = %(oid)s::oid, schema_name = %(schema)s, table_name = %(table)s
where name = %(name)s

-- name: retire
-- Waits for the statements that hold these rows FOR SHARE (absorb, sweep, commit); later ones skip them.
with locked as materialized (
    select id from instep.target where source = %(source)s and state <> 'retired' order by id for update)
update instep.target set state = 'retired' where id in (select id from locked)

-- name: forget_runs
delete from instep.run where derivation = any(%(derivations)s::text[])

-- name: forget_holds
-- Of a worker that did not come to release it.
delete from instep.exclusive where name = any(%(derivations)s::text[])

-- name: forget_targets
delete from instep.target where source = %(source)s

-- name: forget_derivations
delete from instep.derivation where source = %(source)s

-- name: forget_markers
delete from instep.marker where source = %(source)s

-- name: forget_source
delete from instep.source where name = %(source)s

-- name: rename_back
alter table {table} rename column {now} to {column}

-- name: add_again
alter table {table} add column {column} {type}

-- name: retype
alter table {table} alter column {column} type {type} using {column}::text::{type}

-- name: bypass
alter role {role} bypassrls
