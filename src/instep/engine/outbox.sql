-- The outbox of one derivation: claims, leases, releases, failures. See docs/concepts.md for the states.
-- Every statement that locks several entries locks them in key order; claims alone lock in sort order,
-- which is safe because they skip what is locked.
-- Entries of given keys are looked up key by key (LATERAL, not pulled up): as a join, this read the whole outbox
-- without statistics, and under enable_sort = off with any (test_plans.py).

-- name: claim
-- One shape for both orders, newest and oldest first, from the start and from a cursor on. By ctid: a join on the key
-- takes 240 to 350 ms under a generic plan. May come back short when a row changes in the middle of it: only 0 means
-- empty. The last row returned is the cursor of the next claim.
with claimed as (
    update {outbox} o
    set lease_until = now() + make_interval(secs => %(lease)s), token = %(token)s, claims = claims + 1
    where ctid = any(array(
        select ctid from {outbox}
        where target = %(target)s and failed_at is null and not_before is null
            and (lease_until is null or lease_until < now()) and claims < %(suspect)s
            {past_cursor}
        order by sort_key {order}, {key_ordered}
        limit %(limit)s for update skip locked))
    returning {key_o}, o.generation, o.claims, o.sort_key
)
select {key_c}, generation, claims, sort_key::text from claimed c order by c.sort_key {order}, {key_c_ordered}

-- name: past_cursor
and (sort_key, {key}) {beyond} (%(after)s::timestamptz, {key_values})

-- name: claim_suspect
-- Claimed several times without any result: alone, and only when nothing else is left.
update {outbox} o
set lease_until = now() + make_interval(secs => %(lease)s), token = %(token)s, claims = claims + 1
where ctid = any(array(
    select ctid from {outbox}
    where target = %(target)s and failed_at is null and not_before is null
        and (lease_until is null or lease_until < now()) and claims = %(suspect)s
    order by sort_key desc, {key_desc}
    limit 1 for update skip locked))
returning {key_o}, generation, claims, sort_key::text

-- name: bury_lost
-- Run alone, and again no result: the one death without attempts.
update {outbox} o
set failed_at = now(), failed_hash = null, lease_until = null, token = null, error_kind = 'lost',
    last_error = claims || ' claims, no result (worker killed each time?)'
where ctid = any(array(
    select ctid from {outbox}
    where target = %(target)s and failed_at is null and not_before is null
        and (lease_until is null or lease_until < now()) and claims > %(suspect)s
    order by sort_key desc, {key_desc}
    limit %(limit)s for update skip locked))
returning {key_o}

-- name: let_in
update {outbox} o set not_before = null
where ctid = any(array(
    select ctid from {outbox}
    where not_before <= now() and failed_at is null
    order by not_before
    limit %(limit)s for update skip locked))
returning 1

-- name: lock
-- First, in a statement of its own, in key order. What follows finds the rows by ctid, and by its own, later snapshot:
-- in one statement with the lock, a row that an absorb has just counted up is locked in its new version, which that
-- statement's snapshot does not see, and nothing is changed (test_outbox.py::test_a_release_that_meets_an_absorb).
select 1 from (select {key_k} from {key_unnest} order by {key_k}) k cross join lateral (
    select 1 from {outbox} o where {on_o_k} and o.target = %(target)s and o.token = %(token)s
    for update) o

-- name: renew
with mine as materialized (
    select o.place from {key_unnest} cross join lateral (
        select o.ctid as place from {outbox} o
        where {on_o_k} and o.target = %(target)s and o.token = %(token)s offset 0) o
)
update {outbox} o set lease_until = now() + make_interval(secs => %(lease)s)
from mine where o.ctid = mine.place
returning 1

-- name: release
-- Uncounted: an outage, a shutdown, too much for one wave's memory.
with mine as materialized (
    select o.place from {key_unnest} cross join lateral (
        select o.ctid as place from {outbox} o
        where {on_o_k} and o.target = %(target)s and o.token = %(token)s offset 0) o
)
update {outbox} o set lease_until = null, token = null, claims = greatest(claims - 1, 0)
from mine where o.ctid = mine.place
returning 1

-- name: park
-- A timeout of the wave: not claimed again before the lease would have run out.
with mine as materialized (
    select o.place from {key_unnest} cross join lateral (
        select o.ctid as place from {outbox} o
        where {on_o_k} and o.target = %(target)s and o.token = %(token)s offset 0) o
)
update {outbox} o
set not_before = lease_until, lease_until = null, token = null, claims = greatest(claims - 1, 0)
from mine where o.ctid = mine.place
returning 1

-- name: fail
-- Carries the same guards as a commit: another token, nothing is recorded; generation moved on and the content
-- is no longer what was loaded, or the row no longer eligible (which its hash does not say), the entry is given back
-- uncounted.
with mine as materialized (
    select o.place, {key_k}, o.attempts, o.generation <> k.generation as moved,
        k.kind, k.message, k.deterministic, k.hash, k.jitter
    from {key_failures} cross join lateral (
        select o.ctid as place, o.attempts, o.generation from {outbox} o
        where {on_o_k} and o.target = %(target)s and o.token = %(token)s offset 0) o
), judged as materialized (
    select m.*, a.content_hash,
        m.moved and (a.eligible is not true or a.content_hash is distinct from m.hash) as given_back
    from mine m left join {source_a_m}
), decided as materialized (
    select j.*, not given_back and (deterministic or attempts + 1 >= %(max_attempts)s) as dead from judged j
)
update {outbox} o
set lease_until = null, token = null, claims = 0,
    attempts = o.attempts + (not d.given_back)::integer,
    not_before = case when not d.given_back and not d.dead
        then now() + make_interval(secs => %(backoff)s * power(2, d.attempts) * d.jitter) end,
    failed_at = case when d.dead then now() end,
    failed_hash = case when d.dead then coalesce(d.hash, d.content_hash) end,
    error_kind = case when d.given_back then o.error_kind else d.kind end,
    last_error = case when d.given_back then o.last_error else d.message end
from decided d where o.ctid = d.place
returning {key_o}, d.given_back, d.dead

-- name: waiting
-- Bounded: a progress bar wants a figure, not a full count of millions.
select count(*) from (
    select 1 from {outbox} where target = %(target)s and failed_at is null limit %(limit)s) w
