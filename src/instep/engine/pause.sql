-- The pause switch. `until` is judged by the database's clock: what has passed is not in force, and goes with the next
-- change of the switch.

-- name: pause
insert into instep.pause as p (scope, reason, until)
values (%(scope)s, %(reason)s, coalesce(%(until)s::timestamptz, now() + make_interval(secs => %(seconds)s)))
on conflict (scope) do update set reason = excluded.reason, until = excluded.until,
    since = case when p.until <= now() then excluded.since else p.since end
returning scope, reason, since, until, coalesce(until <= now(), false)

-- name: resume
-- One scope, or all of them. What had passed already is taken away too, and not counted.
with gone as (
    delete from instep.pause where %(scope)s::text is null or scope = %(scope)s returning scope, reason, since, until)
select scope, reason, since, until from gone where until is null or until > now() order by scope

-- name: standing
select scope, reason, since, until from instep.pause where until is null or until > now() order by scope

-- name: forget
delete from instep.pause where scope = any(%(scopes)s::text[])
