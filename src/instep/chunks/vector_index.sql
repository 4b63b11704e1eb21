-- The HNSW index of one target's vectors, built after its first fill: COPY into a table that has one ran at 619
-- rows/s, into one that has none at 137,000 (docs/decisions/0009-chunk-writes.md).

-- name: state
-- Of the index: valid, invalid (left by a build that broke off, or one that still runs) or no row.
select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relname = %(name)s and i.indrelid = to_regclass(%(chunk)s)

-- name: many
-- At least this many rows, counted no further: vectors are wide.
select count(*) from (select 1 from {chunk} limit %(rows)s) as few

-- name: filled
-- How far the fill is: entities that are stamped, and entries that wait (counted as far as it matters).
with made as (select count(*) as entities from {stamp} where target = %(target)s)
select made.entities, (
    select count(*) from (
        select 1 from {outbox} where target = %(target)s and failed_at is null
        limit (select (entities * %(share)s::float8)::bigint + 1 from made)
    ) as waiting
) from made

-- name: rows
select greatest(count(*), 1) from {chunk}

-- name: alone
-- Held by a transaction that does nothing else.
select pg_try_advisory_xact_lock(hashtextextended('instep.vector_index ' || %(name)s, 0))

-- name: let_go
-- The portal of the statement before keeps its snapshot until the next one, and the build would wait for it for ever;
-- this one has none.
set local idle_in_transaction_session_timeout = 0

-- name: lock
-- A build by hand holds this lock for as long as it runs; an autovacuum gives it up to who waits.
lock table {chunk} in share update exclusive mode

-- name: drop_leftover
drop index if exists {index}

-- name: build
create index concurrently if not exists {index_bare} on {chunk}
    using hnsw (vector {operators}) with (m = 16, ef_construction = 64)

-- name: analyze
analyze {chunk}

-- name: set_memory
select set_config('maintenance_work_mem', %(memory)s, false),
    set_config('max_parallel_maintenance_workers', %(workers)s, false)

-- name: reset_memory
reset maintenance_work_mem; reset max_parallel_maintenance_workers
