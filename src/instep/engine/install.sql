-- Templates of the tables that belong to one source or one derivation. Template 2: whoever changes a table here raises
-- capture.TEMPLATE and writes into templates.sql what makes of the older tables what is made here now.

-- name: create_change
-- Append-only. The primary key on seq is its only index: a publication FOR ALL TABLES needs one,
-- and the user's writes must never meet a worker on the source's key. Each session draws its numbers in blocks, which
-- takes a sixth off a captured insert; they are in no order of commit anyway, and absorb starts again from 0 for those.
create table if not exists {change} (
    seq bigint generated always as identity (cache 500) primary key,
    {key_definitions},
    derivations integer not null
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1)

-- name: create_outbox
create table if not exists {outbox} (
    {key_definitions},
    target text not null,
    sort_key timestamptz not null,          -- the source's notion of newest; -infinity where it has none
    generation bigint not null default 1,   -- how often it was absorbed into
    enqueued_at timestamptz not null default now(),
    not_before timestamptz,                 -- parked until then; null while leased
    lease_until timestamptz,
    token bigint,                           -- of the last claim; null: never claimed, or given back
    claims integer not null default 0,      -- without any result
    attempts integer not null default 0,    -- failures of this item
    failed_at timestamptz,                  -- set: a dead letter
    failed_hash bytea,                      -- the content that failed; null where nobody loaded it
    discarded_at timestamptz,
    discard_reason text,
    error_kind text,
    last_error text,
    primary key ({key}, target)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05)

-- name: create_outbox_claim_index
create index if not exists {outbox_claim_index} on {outbox} (target, sort_key desc, {key_desc})
    where failed_at is null and not_before is null

-- name: create_outbox_parked_index
create index if not exists {outbox_parked_index} on {outbox} (not_before)
    where not_before is not null and failed_at is null

-- name: create_outbox_dead_index
create index if not exists {outbox_dead_index} on {outbox} (error_kind, failed_at)
    where failed_at is not null

-- name: create_stamp
create table if not exists {stamp} (
    {key_definitions},
    target text not null,
    content_hash bytea,
    stamped_at timestamptz not null default now(),
    primary key ({key}, target)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)

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

-- name: drop_tables
drop table if exists {outbox}, {stamp}

-- name: drop_change
drop table if exists {change}

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


-- Statements that people are shown (doctor): they put back what is not as it was installed.

-- name: key_change
alter table {change} add primary key (seq)

-- name: key_outbox
alter table {outbox} add primary key ({key}, target)

-- name: key_stamp
alter table {stamp} add primary key ({key}, target)

-- name: sweep_again
-- What a lost table held is found again.
update instep.derivation set sweep_due = 'one of its tables was made again' where name = {due}

-- name: forget_stamps
delete from {stamp} where target = {target}

-- name: rename_back
alter table {table} rename column {now} to {column}

-- name: add_again
alter table {table} add column {column} {type}

-- name: retype
alter table {table} alter column {column} type {type} using {column}::text::{type}

-- name: bypass
alter role {role} bypassrls
