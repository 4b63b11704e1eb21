-- One drainer at a time of an output outside PostgreSQL. Judged by the database's clock.

-- name: acquire
insert into instep.exclusive as e (name, holder, token, lease_until)
values (%(name)s, %(holder)s, %(token)s, now() + make_interval(secs => %(lease)s))
on conflict (name) do update
set holder = excluded.holder, token = excluded.token, lease_until = excluded.lease_until
where e.lease_until < now() or e.token = excluded.token
returning token

-- name: holder
select holder, greatest(extract(epoch from lease_until - now()), 0)::float8 from instep.exclusive where name = %(name)s

-- name: renew
update instep.exclusive set lease_until = now() + make_interval(secs => %(lease)s)
where name = %(name)s and token = %(token)s
returning token

-- name: release
delete from instep.exclusive where name = %(name)s and token = %(token)s
