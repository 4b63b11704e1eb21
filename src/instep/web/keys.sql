-- Keys of the HTTP API. The secret itself is nowhere: a lookup is by its hash.

-- name: create
insert into instep.api_key (id, hash, name, role, tables)
values (%(id)s, %(hash)s, %(name)s, %(role)s, %(tables)s::text[])
returning id, name, role, tables, created_at, used_at, revoked_at

-- name: listed
select id, name, role, tables, created_at, used_at, revoked_at from instep.api_key order by created_at desc, id

-- name: revoke
update instep.api_key set revoked_at = coalesce(revoked_at, now()) where id = %(id)s
returning id, name, role, tables, created_at, used_at, revoked_at

-- name: any_key
select exists (select from instep.api_key where revoked_at is null)

-- name: caller
-- `used_at` is written at most once a minute, and never waited for: a row that another session holds is passed over.
with found as materialized (
    select id, name, role, tables, used_at from instep.api_key where hash = %(hash)s and revoked_at is null),
used as (
    update instep.api_key k set used_at = now() where k.id in (
        select u.id from instep.api_key u join found f using (id)
        where f.used_at is null or f.used_at < now() - interval '1 minute' for update of u skip locked))
select id, name, role, tables from found
