-- Is this text a condition that can be kept in step? PostgreSQL itself says: it must be one that could stand in an
-- index, so immutable, without subqueries, over one row. Tried on an empty temporary copy that is rolled back.

-- name: limits
select set_config('lock_timeout', '5s', true)

-- name: create_copy
create temporary table instep_condition (like {relation})

-- name: create_index
-- The line break ends a comment that the condition may end with.
create index instep_condition_index on pg_temp.instep_condition (((
{condition}
) is true))

-- name: whole
-- One expression and nothing else: brackets that do not match can turn one condition into something else.
select i.indnatts = 1 and i.indpred is null, pg_get_indexdef(i.indexrelid)
from pg_index i where i.indexrelid = 'pg_temp.instep_condition_index'::regclass

-- name: columns
select a.attname::text
from pg_depend d join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
where d.classid = 'pg_class'::regclass and d.objid = 'pg_temp.instep_condition_index'::regclass
    and d.refobjid = 'pg_temp.instep_condition'::regclass and d.refobjsubid > 0
order by a.attnum

-- name: not_immutable
select distinct proname::text from pg_proc
where proname = any(%(names)s::text[]) and provolatile <> 'i' order by 1
