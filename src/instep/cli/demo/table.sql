-- The demo's table: an ordinary one, as anybody has it. Everything here is what a user's own programs would send.

-- name: create
create table if not exists packages (
    name text primary key,
    version text not null,
    section text not null,
    priority text not null,
    architecture text not null,
    maintainer text not null,
    installed_size integer not null,     -- kB
    tags text not null,
    homepage text not null,
    description text not null,
    obsolete boolean not null default false,
    updated_at timestamptz not null default now()
)

-- name: stage
create temporary table staged (like packages including defaults) on commit drop

-- name: copy
copy staged (name, version, section, priority, architecture, maintainer, installed_size, tags, homepage, description)
from stdin

-- name: settle_gone
-- Loading again: rows that are not among those chosen go.
delete from packages p where not exists (select from staged s where s.name = p.name)

-- name: settle
-- Rows that are new or differ come; the others are not touched.
insert into packages
select * from staged
on conflict (name) do update set
    version = excluded.version, section = excluded.section, priority = excluded.priority,
    architecture = excluded.architecture, maintainer = excluded.maintainer,
    installed_size = excluded.installed_size, tags = excluded.tags, homepage = excluded.homepage,
    description = excluded.description, obsolete = false, updated_at = now()
where (packages.description, packages.version, packages.section, packages.obsolete)
    is distinct from (excluded.description, excluded.version, excluded.section, false)

-- name: rewrite
update packages
set description = replace(description, %(old)s, %(new)s), updated_at = now()
where name = any(%(names)s)

-- name: delete
delete from packages where name = any(%(names)s)

-- name: close
update packages set obsolete = true where name = any(%(names)s)

-- name: touch
-- A column that nothing is derived from.
update packages set homepage = homepage || '#'

-- name: count
select count(*) from packages
