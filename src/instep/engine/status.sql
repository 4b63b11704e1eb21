-- What status shows of one derivation.

-- name: queue
-- One pass over the live part of the outbox; bounded by a statement time-out of the caller.
select count(*) filter (where lease_until is null or lease_until < now()),
    count(*) filter (where lease_until >= now()),
    coalesce(extract(epoch from now() - min(enqueued_at)), 0)::float8
from {outbox} where failed_at is null

-- name: dead
select count(*) from {outbox} where failed_at is not null and discarded_at is null

-- name: unabsorbed
-- Changes in the log that no worker has absorbed yet: bounded, it only has to say that there are some.
select count(*)
from (select 1 from {change} where derivations & %(bit)s <> 0 limit %(limit)s) c

-- name: coverage
-- Stamped rows of the target that is read, and eligible rows. A full comparison by hash is what a sweep does.
select (select count(*) from {stamp} where target = %(target)s),
    (select count(*) from {source_rows} a where a.eligible)

-- name: last_run
select started_at, seen_at, finished_at, outcome, detail, counters,
    extract(epoch from now() - coalesce(finished_at, seen_at))::float8
from instep.run where derivation = %(derivation)s order by id desc limit 1

-- name: share
-- Cheap enough for a search: what waits, up to a bound, and the planner's idea of the table. -1: it has none.
select (select count(*) from (
        select 1 from {outbox} where target = %(target)s and failed_at is null limit %(limit)s) w),
    (select reltuples::float8 from pg_catalog.pg_class where oid = %(relation)s)
