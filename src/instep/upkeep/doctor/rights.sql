-- Rights of the role that doctor runs as, which is the workers' where both have the same settings.

-- name: schema
select has_schema_privilege('instep', 'usage, create') and has_schema_privilege('instep', 'create')

-- name: ours
-- Owners of our tables whose rights this role does not have.
select pg_get_userbyid(c.relowner), count(*), min(c.oid::regclass::text)
from pg_class as c
where c.relnamespace = 'instep'::regnamespace and c.relkind in ('r', 'p') and not pg_has_role(c.relowner, 'usage')
group by c.relowner order by 1

-- name: source
select pg_get_userbyid(c.relowner), has_table_privilege(c.oid, 'select')
from pg_class as c where c.oid = %(oid)s::oid and not pg_has_role(c.relowner, 'usage')

-- name: grant_schema
grant usage, create on schema instep to {role}

-- name: make_member
grant {owner} to {role}
