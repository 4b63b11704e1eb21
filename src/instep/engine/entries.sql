-- Pages of an outbox by its primary key (key, target): a page far behind costs what the first one costs.

-- name: first
select {key_o}, o.target, s.state, o.generation, o.claims, o.attempts, o.enqueued_at, o.error_kind, o.last_error
from {outbox} o cross join lateral (select case
    when o.discarded_at is not null then 'discarded' when o.failed_at is not null then 'dead'
    when o.lease_until >= now() then 'leased' when o.not_before is not null then 'parked' else 'waiting' end as state) s
where %(state)s::text is null or s.state = %(state)s
order by {key_o}, o.target limit %(limit)s offset %(offset)s

-- name: after
select {key_o}, o.target, s.state, o.generation, o.claims, o.attempts, o.enqueued_at, o.error_kind, o.last_error
from {outbox} o cross join lateral (select case
    when o.discarded_at is not null then 'discarded' when o.failed_at is not null then 'dead'
    when o.lease_until >= now() then 'leased' when o.not_before is not null then 'parked' else 'waiting' end as state) s
where ({key_o}, o.target) > ({key_values}, %(target)s) and (%(state)s::text is null or s.state = %(state)s)
order by {key_o}, o.target limit %(limit)s offset %(offset)s
