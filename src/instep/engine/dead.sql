-- Dead letters: listed by kind, shown, replayed, discarded. Discarded ones stay as rows, out of all counts,
-- until their content changes (else the next sweep would make them anew).

-- name: kinds
select k.error_kind, k.count, k.oldest, {key_e}, e.last_error
from (
    select error_kind, count(*) as count, min(failed_at) as oldest, max(failed_at) as newest
    from {outbox} where failed_at is not null and discarded_at is null group by error_kind
) k
cross join lateral (
    select * from {outbox} o
    where o.failed_at is not null and o.discarded_at is null and o.error_kind is not distinct from k.error_kind
    order by o.failed_at desc limit 1
) e
order by k.count desc, k.error_kind

-- name: letters
select {key_o}, o.target, o.error_kind, o.last_error, o.attempts, o.failed_at, o.failed_hash
from {outbox} o
where o.failed_at is not null and o.discarded_at is null and (%(kind)s::text is null or o.error_kind = %(kind)s)
order by o.failed_at desc, {key_o}, o.target limit %(limit)s offset %(offset)s

-- name: letters_after
select {key_o}, o.target, o.error_kind, o.last_error, o.attempts, o.failed_at, o.failed_hash
from {outbox} o
where o.failed_at is not null and o.discarded_at is null and (%(kind)s::text is null or o.error_kind = %(kind)s)
    and (o.failed_at < %(failed_at)s
        or (o.failed_at = %(failed_at)s and ({key_o}, o.target) > ({key_values}, %(target)s)))
order by o.failed_at desc, {key_o}, o.target limit %(limit)s offset %(offset)s

-- name: show
select o.target, o.error_kind, o.last_error, o.attempts, o.failed_at, o.failed_hash, o.discarded_at, o.discard_reason
from {outbox} o where ({key_o}) = ({key_values}) and o.failed_at is not null
order by o.target

-- name: lock_key
-- In a statement of its own: the change that follows finds the rows by ctid, by a later snapshot (see outbox.sql, lock).
select ctid::text from {outbox} o
where ({key_o}) = ({key_values}) and o.failed_at is not null and (not %(standing)s or o.discarded_at is null)
order by {key_o}, o.target for update

-- name: lock_kind
-- A bounded piece, in key order; called again until it comes back short.
select ctid::text from {outbox} o
where o.failed_at is not null and o.discarded_at is null and (%(kind)s::text is null or o.error_kind = %(kind)s)
order by {key_o}, o.target limit %(limit)s for update

-- name: replay
update {outbox} o
set failed_at = null, failed_hash = null, discarded_at = null, discard_reason = null, attempts = 0, claims = 0,
    not_before = null, generation = generation + 1
where ctid = any(%(rows)s::tid[])

-- name: discard
update {outbox} o set discarded_at = now(), discard_reason = %(why)s where ctid = any(%(rows)s::tid[])
