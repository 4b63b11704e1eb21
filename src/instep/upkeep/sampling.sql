-- Samples and points. `at` is the database's clock, but where a test simulates days.

-- name: begin
-- One process at a time: the row is locked, and whoever comes later finds that it was begun.
insert into instep.sampling as s (at) values (clock_timestamp())
on conflict (one) do update set at = excluded.at where s.at <= excluded.at - make_interval(secs => %(every)s)
returning at

-- name: account
-- What runs have done since it was last put into a point. A run that ended, or was not seen for a day, is closed.
with o as materialized (
    select id, derivation, sampled, finished_at, seen_at,
        coalesce((counters ->> 'indexed')::bigint, 0) + coalesce((counters ->> 'removed')::bigint, 0) as done
    from instep.run where not closed order by id for update),
u as (
    update instep.run r set sampled = greatest(o.done, o.sampled),
        closed = o.finished_at is not null or o.seen_at < now() - interval '1 day'
    from o where r.id = o.id and (o.done > o.sampled or o.finished_at is not null or o.seen_at < now() - interval '1 day'))
select o.derivation, sum(o.done - o.sampled)::bigint
from o join instep.derivation d on d.name = o.derivation
where o.done > o.sampled group by o.derivation

-- name: keep
insert into instep.sample as s (derivation, at, status)
select d.name, coalesce(%(at)s::timestamptz, clock_timestamp()), %(status)s
from instep.derivation d where d.name = %(derivation)s
on conflict (derivation) do update set at = excluded.at, status = excluded.status

-- name: counted
select extract(epoch from now() - coverage_at)::float8, coalesce(coverage_seconds, 0)
from instep.sample where derivation = %(derivation)s

-- name: counted_now
update instep.sample set coverage = %(coverage)s, coverage_at = now(), coverage_seconds = %(seconds)s
where derivation = %(derivation)s

-- name: coverage
select (status ->> 'coverage')::float8 from instep.sample where derivation = %(derivation)s

-- name: point
insert into instep.point as p (derivation, span, at, depth, worked, dead, oldest_wait)
select d.name, %(span)s, coalesce(%(at)s::timestamptz, clock_timestamp()), %(depth)s, %(worked)s, %(dead)s, %(oldest_wait)s
from instep.derivation d where d.name = %(derivation)s
on conflict (derivation, span, at) do update set depth = greatest(p.depth, excluded.depth),
    worked = p.worked + excluded.worked, dead = greatest(p.dead, excluded.dead),
    oldest_wait = greatest(p.oldest_wait, excluded.oldest_wait)

-- name: thin
-- Whole spans alone: those that end before the time from which points of this span are kept.
with old as (
    delete from instep.point
    where span = %(span)s and at < date_bin(make_interval(secs => %(longer)s),
        coalesce(%(at)s::timestamptz, now()) - make_interval(secs => %(keep)s), timestamptz 'epoch')
    returning derivation, at, depth, worked, dead, oldest_wait)
insert into instep.point as p (derivation, span, at, depth, worked, dead, oldest_wait)
select derivation, %(longer)s, date_bin(make_interval(secs => %(longer)s), at, timestamptz 'epoch'),
    max(depth), sum(worked), max(dead), max(oldest_wait)
from old group by 1, 3
on conflict (derivation, span, at) do update set depth = greatest(p.depth, excluded.depth),
    worked = p.worked + excluded.worked, dead = greatest(p.dead, excluded.dead),
    oldest_wait = greatest(p.oldest_wait, excluded.oldest_wait)

-- name: drop
delete from instep.point
where span = %(span)s and at < coalesce(%(at)s::timestamptz, now()) - make_interval(secs => %(keep)s)

-- name: samples
select s.derivation, s.at, s.status || jsonb_build_object('worked_last_hour', coalesce((
    select sum(worked) from instep.point p
    where p.derivation = s.derivation and p.at > now() - interval '1 hour'), 0)::bigint)
from instep.sample s order by s.derivation

-- name: series
select date_bin(make_interval(secs => %(width)s), at, timestamptz 'epoch') as bin,
    max(depth), sum(worked)::bigint, max(dead), max(oldest_wait)
from instep.point
where derivation = %(derivation)s and at > now() - make_interval(secs => %(seconds)s)
group by bin order by bin
