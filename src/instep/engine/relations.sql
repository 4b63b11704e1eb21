-- Facts about a user's table.

-- name: named
-- As PostgreSQL reads a name: search_path, quotes, folding to lower case.
select pg_catalog.to_regclass(%(text)s)::oid

-- name: known
select case when pg_catalog.pg_table_is_visible(c.oid) then pg_catalog.quote_ident(c.relname)
    else pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) end
from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
    and n.nspname not in ('pg_catalog', 'information_schema', 'instep') and n.nspname not like 'pg\_%%'
order by 1 limit 2000

-- name: relation
select c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relispartition,
    pg_catalog.row_security_active(c.oid),
    array(with recursive part as (
            select i.inhrelid from pg_catalog.pg_inherits as i where i.inhparent = c.oid
            union select i.inhrelid from part join pg_catalog.pg_inherits as i on i.inhparent = part.inhrelid)
        select pg_catalog.quote_ident(pn.nspname) || '.' || pg_catalog.quote_ident(pc.relname)
        from part join pg_catalog.pg_class as pc on pc.oid = part.inhrelid
        join pg_catalog.pg_namespace as pn on pn.oid = pc.relnamespace order by 1)
from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.oid = %(oid)s::oid

-- name: columns
-- Type as written, and the type below a domain; the collation where it is not its type's own.
with recursive base as (
    select a.attnum, a.atttypid as type from pg_catalog.pg_attribute as a
    where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
    union all
    select base.attnum, t.typbasetype from base join pg_catalog.pg_type as t on t.oid = base.type and t.typtype = 'd')
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnum, a.attgenerated::text, not a.attnotnull,
    case when a.attcollation <> b.typcollation then
        (select pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(o.collname)
        from pg_catalog.pg_collation as o join pg_catalog.pg_namespace as n on n.oid = o.collnamespace
        where o.oid = a.attcollation) else '' end,
    pg_catalog.format_type(b.oid, null)
from pg_catalog.pg_attribute as a
join base on base.attnum = a.attnum
join pg_catalog.pg_type as b on b.oid = base.type and b.typtype <> 'd'
where a.attrelid = %(oid)s::oid
order by a.attnum

-- name: keys
-- Candidates, best first: the primary key, then unique indexes over columns that are never null.
select array(select a.attname from unnest(i.indkey::smallint[]) with ordinality as k(attnum, place)
        join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
        where k.place <= i.indnkeyatts order by k.place)
from pg_catalog.pg_index as i
where i.indrelid = %(oid)s::oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
    and not exists (
        select from unnest(i.indkey::smallint[]) with ordinality as k(attnum, place)
        join pg_catalog.pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
        where k.place <= i.indnkeyatts and not a.attnotnull)
order by i.indisprimary desc, i.indimmediate desc, i.indnkeyatts, i.indexrelid

-- name: row_estimate
-- The statistics, scaled to the present size; without any, a guess from the size alone.
with recursive family as (
    select %(oid)s::oid as oid
    union select i.inhrelid from pg_catalog.pg_inherits as i join family on family.oid = i.inhparent)
select coalesce(sum(case
    when c.relkind <> 'r' then greatest(c.reltuples, 0)
    when c.reltuples > 0 and c.relpages > 0
        then c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::int)
    else pg_relation_size(c.oid) / 100 end) filter (where c.relkind <> 'p'), 0)::float8
from family join pg_catalog.pg_class as c on c.oid = family.oid
