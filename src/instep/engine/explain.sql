-- Why one row is as it is: its content now, what its outputs were made from, and what waits.

-- name: row
select s.eligible, s.content_hash from {source_rows} s where ({key_s}) = ({key_values})

-- name: stamps
select s.target, s.content_hash, s.stamped_at, extract(epoch from now() - s.stamped_at)::float8
from {stamp} s where ({key_s}) = ({key_values}) order by s.target

-- name: entries
select o.target, o.generation, o.claims, o.attempts, o.enqueued_at,
    extract(epoch from now() - o.enqueued_at)::float8 as waited,
    coalesce(o.lease_until > now(), false) as leased,
    extract(epoch from o.not_before - now())::float8 as parked_seconds,
    o.failed_at, o.failed_hash, o.discarded_at, o.discard_reason, o.error_kind, o.last_error
from {outbox} o where ({key_o}) = ({key_values}) order by o.target

-- name: logged
-- The log has no index on the key; it is short unless nothing runs.
select exists (select from {change} c where ({key_c}) = ({key_values}) and c.derivations & %(bit)s <> 0)
