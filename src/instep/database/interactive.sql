-- Who is asked for queries now (instep.interactive).

-- name: announce
insert into instep.interactive as i (server, expires_at)
values (%(server)s, now() + make_interval(secs => %(seconds)s))
on conflict (server) do update set expires_at = greatest(i.expires_at, excluded.expires_at)

-- name: wanted
select server, extract(epoch from expires_at - now())::float8 from instep.interactive where expires_at > now()
