-- Absorb: a bounded piece of a source's change log becomes entries of each outbox concerned, in one statement.
-- The steps of `absorb` are put together from the blocks below it, one for each derivation.

-- name: absorb
-- Targets are locked and read first: a retired one gets no entries any more. `seq = any(array(…))` keeps the delete
-- an index scan whatever the statistics say; SKIP LOCKED lets workers absorb side by side.
with t as materialized (
    select target, bit from instep.target where source = %(source)s and state <> 'retired'
    order by derivation, target for share),
d as materialized (
    delete from {change} where seq = any(array(
        select seq from {change} where seq > %(cursor)s::bigint order by seq limit %(limit)s::bigint
        for update skip locked))
    returning seq, {key}, derivations),
g as materialized (select {key}, bit_or(derivations) as mask from d group by {key}),
{steps}
select (select count(*) from d), (select max(seq) from d), {counts}

-- name: logged
-- What a worker with nothing to do asks four times a second: one statement instead of seven.
select exists (select from (select seq from {change} order by seq limit 1) one)

-- name: newest
-- The sort key is copied, so that a claim never joins. A row that is gone or not eligible any more comes first:
-- removals are prompt. Shared by derivations of one idea of eligible and newest.
{joined} as materialized (
    select {key_g}, g.mask, case when s.eligible then s.sort_key else now() end as sort_key
    from g left join {source_s_g})

-- name: newest_unread
-- Where a row of the piece cannot be read: work does not depend on it, loading it will say what is wrong with it.
{joined} as materialized (select {key_g}, g.mask, now() as sort_key from g)

-- name: enqueue
-- Changed content deserves a new try, of a waiting entry and of a dead one alike; lease and token are left alone.
-- The first enqueued_at of a waiting entry stays, so that the oldest wait is true.
{step} as (
    insert into {outbox} as o ({key}, target, sort_key)
    select {key_k}, t.target, k.sort_key from {joined} as k join t on t.bit = {bit} where k.mask & {bit} <> 0
    order by {key_k}, t.target
    on conflict ({key}, target) do update set generation = o.generation + 1, sort_key = excluded.sort_key,
        enqueued_at = case when o.failed_at is null then o.enqueued_at else excluded.enqueued_at end,
        attempts = 0, claims = 0, not_before = null, failed_at = null, failed_hash = null,
        discarded_at = null, discard_reason = null, error_kind = null, last_error = null
    returning 1)

-- name: count
(select count(*) from {step})
