-- Sweep: source, stamps and outbox compared in bounded pieces of the key space, one set-based statement each.

-- name: make_due
-- The moment makes each text another: a sweep clears the one that it saw when it began, and no later one.
update instep.derivation set sweep_due = %(reason)s || ' at ' || clock_timestamp()::text
where (name = %(derivation)s or source = %(source)s)

-- name: due
select d.sweep_due,
    exists (select from instep.marker as m where m.source = d.source and m.seq > d.swept_marker),
    extract(epoch from clock_timestamp() - d.swept_at)::float8
from instep.derivation as d where d.name = %(derivation)s

-- name: begin_sweep
-- Up to which marker this sweep comes. A transaction that has drawn a marker's number and is not committed yet holds
-- the lock shared (capture.sql): what it did is not seen by this sweep, so no marker is passed then.
select d.sweep_due, clock_timestamp()::text, case when pg_try_advisory_xact_lock(hashtextextended(%(lock)s, 0))
    then greatest(d.swept_marker, (select coalesce(max(m.seq), 0) from instep.marker as m where m.source = d.source))
    else d.swept_marker end
from instep.derivation as d where d.name = %(derivation)s

-- name: end_sweep
with done as (
    update instep.derivation set swept_at = %(began)s::timestamptz,
        swept_marker = greatest(swept_marker, %(marker)s::bigint),
        sweep_due = case when sweep_due is distinct from %(due)s then sweep_due end
    where name = %(derivation)s returning source)
select source from done

-- name: forget_markers
-- Those that all derivations of the source have passed.
delete from instep.marker as m where m.source = %(source)s
    and m.seq <= (select min(d.swept_marker) from instep.derivation as d where d.source = %(source)s)

-- name: bound
-- The end of a piece: the smallest of three, so that a gap in one of the tables stays bounded too. Keys
-- alone are read: a row whose other columns cannot be read is no trouble here.
select {key} from (
    (select {key} from (select {source_key} from {relation} as a) as r where {range} order by {key} offset %(size)s::bigint limit 1)
    union all
    (select {key} from {stamp} as r where {range} order by {key} offset %(size)s::bigint limit 1)
    union all
    (select {key} from {outbox} as r where {range} order by {key} offset %(size)s::bigint limit 1)) as p
order by {key} limit 1

-- name: keys
select {key} from (select {source_key} from {relation} as a) as r where {range} order by {key}

-- name: piece
-- Entries that wait without a token need nothing, and dead letters that stay dead: both are dropped before the
-- insert, because a DO UPDATE whose WHERE is false still locks its row. What the snapshot cannot know is decided by
-- the locked row: the content's hash goes along in excluded.failed_hash, and excluded.generation = 0 says that the
-- entity is not eligible (in a new entry both mean nothing). An entry with a token is counted up even where the
-- stamp is right: its holder may have loaded what was there in between.
with t as materialized (
    select target from instep.target where derivation = %(derivation)s and state <> 'retired'
    order by target for share),
s as materialized (
    select {key}, eligible, case when eligible then content_hash end as content_hash, sort_key
    from {source_rows} as r where {range}),
x as (select {key_s}, t.target, s.eligible, s.content_hash, s.sort_key from s cross join t),
m as (select {key}, target, content_hash, true as stamped from {stamp} as r
    where {range} and target in (select target from t)),
e as (select {key}, target, token, failed_at, failed_hash, true as entered from {outbox} as r
    where {range} and target in (select target from t)),
c as (
    select {key}, target, x.eligible is true as eligible, x.content_hash,
        case when x.eligible then x.sort_key else now() end as sort_key
    from x full join m using ({key}, target) full join e using ({key}, target)
    where (x.eligible and (m.stamped is null or m.content_hash is distinct from x.content_hash)
            or x.eligible is not true and (m.stamped or e.failed_at is not null)
            or e.token is not null)
        and (e.entered is null or e.token is not null or e.failed_at is not null)
        and (e.failed_at is null or x.eligible is not true
            or e.failed_hash is not null and e.failed_hash is distinct from x.content_hash)),
i as (
    insert into {outbox} as o ({key}, target, sort_key, generation, failed_hash)
    select {key}, target, sort_key, case when eligible then 1 else 0 end, content_hash from c
    order by {key}, target
    on conflict ({key}, target) do update set
        generation = o.generation + case when o.token is null then 0 else 1 end,
        sort_key = case when o.token is null then excluded.sort_key else o.sort_key end,
        enqueued_at = case when o.token is null then excluded.enqueued_at else o.enqueued_at end,
        attempts = case when o.token is null then 0 else o.attempts end,
        claims = case when o.token is null then 0 else o.claims end,
        error_kind = case when o.token is null then null else o.error_kind end,
        last_error = case when o.token is null then null else o.last_error end,
        not_before = null, failed_at = null, failed_hash = null, discarded_at = null, discard_reason = null
    where o.token is not null or o.failed_at is not null and (excluded.generation = 0
        or o.failed_hash is not null and o.failed_hash is distinct from excluded.failed_hash)
    returning 1)
select (select count(*) from i), (select count(*) from s)

-- name: bury
-- A row that cannot be read. No hash: nobody loaded it, so only a change, its end or a person revives it. An entry
-- that a worker holds is left to that worker.
with t as materialized (
    select target from instep.target where derivation = %(derivation)s and state <> 'retired'
    order by target for share)
insert into {outbox} as o ({key}, target, sort_key, failed_at, attempts, error_kind, last_error)
select {key_values}, t.target, '-infinity', now(), 1, %(kind)s, %(message)s from t order by t.target
on conflict ({key}, target) do update set failed_at = excluded.failed_at, failed_hash = null, not_before = null,
    attempts = o.attempts + 1, error_kind = excluded.error_kind, last_error = excluded.last_error
where o.failed_at is null and o.token is null
