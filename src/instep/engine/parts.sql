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

-- name: drop_tables
drop table if exists {outbox}, {stamp}

-- name: drop_change
drop table if exists {change}

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
