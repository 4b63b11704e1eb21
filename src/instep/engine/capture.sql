-- Capture: the trigger functions of one source, and the triggers on its table. Template 2
-- (raise capture.TEMPLATE with a change: the functions are written anew then, see parts.sql for the tables).
--
-- A function reads inside an exception block, into arrays, and writes outside it: reading alone takes no
-- subtransaction id, so that hundreds of statements in one transaction do not overflow the server's cache of them.
-- An error while reading (a watched column renamed, say) sets the "suspect" marker, and the user's statement passes.
-- SECURITY DEFINER: the application's role needs no right on the schema instep. EXECUTE stays with everybody: the
-- owner of a partitioned table needs it when a new partition inherits the row trigger.
-- Where several rows make one entity (a chain), keys are taken once, and old and new rows are still told apart.

-- name: insert_function
create or replace function {insert_function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $capture$
declare
    {declared}
begin
    begin
        select {collected_n} into {arrays} from {new_rows} as n;
    exception when others then
        {suspect}
        return null;
    end;
    insert into {change} ({key}, derivations) select {key_u}, {all} from unnest({arrays}) as u({key});
    return null;
end
$capture$

-- name: delete_function
create or replace function {delete_function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $capture$
declare
    {declared}
begin
    begin
        select {collected_o} into {arrays} from {old_rows} as o;
    exception when others then
        {suspect}
        return null;
    end;
    insert into {change} ({key}, derivations) select {key_u}, {all} from unnest({arrays}) as u({key});
    return null;
end
$capture$

-- name: update_function
-- A FULL JOIN on the key: the session caches this plan, and after an update of one row an inner join stays a nested
-- loop, which took 31 s for 20,000 rows; no nested loop can serve a FULL JOIN. A key that is on one side only was
-- given or taken by an update of the key itself. OFFSET 0 keeps the comparison from being done twice.
create or replace function {update_function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set extra_float_digits = 1 as $capture$
declare
    {declared}
    masks integer[];
begin
    begin
        select {collected_c}, array_agg(c.mask) into {arrays}, masks
        from (select {distinct}{either},
                case when o.{first_key} is null or n.{first_key} is null then {all} else {changed_on} end as mask
            from old_rows as o full join new_rows as n on {same_key} offset 0) as c
        where c.mask <> 0;
    exception when others then
        {suspect}
        return null;
    end;
    if masks is not null then
        insert into {change} ({key}, derivations)
            select {key_u}, u.mask from unnest({arrays}, masks) as u({key}, mask);
    end if;
    return null;
end
$capture$

-- name: row_function
-- For sessions that apply a replica's rows: they fire no statement triggers for single rows.
create or replace function {row_function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set extra_float_digits = 1 as $capture$
declare
    {declared}
    masks integer[];
begin
    begin
        if tg_op = 'INSERT' then
            {take_new} masks := array[{all}];
        elsif tg_op = 'DELETE' then
            {take_old} masks := array[{all}];
        elsif ({old_key}) is distinct from ({new_key}) then
            {take_both} masks := array[{all}, {all}];
        else
            {take_new} masks := array[{changed_oldnew}];
        end if;
    exception when others then
        {suspect}
        return null;
    end;
    insert into {change} ({key}, derivations)
        select {key_u}, u.mask from unnest({arrays}, masks) as u({key}, mask) where u.mask <> 0;
    return null;
end
$capture$

-- name: truncate_function
create or replace function {truncate_function}() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $capture$
begin
    perform pg_advisory_xact_lock_shared(hashtextextended({marker_lock}, 0));
    insert into instep.marker (source, kind) values ({source}, 'everything');
    return null;
end
$capture$

-- name: suspect
-- The shared lock tells a sweep that a marker may be on its way (sweep.sql, `begin_sweep`).
perform pg_advisory_xact_lock_shared(hashtextextended({marker_lock}, 0));
        insert into instep.marker (source, kind) values ({source}, 'suspect');

-- name: insert_trigger
create trigger instep_insert after insert on {table} referencing new table as new_rows
    for each statement execute function {insert_function}()

-- name: update_trigger
create trigger instep_update after update on {table} referencing old table as old_rows new table as new_rows
    for each statement execute function {update_function}()

-- name: delete_trigger
create trigger instep_delete after delete on {table} referencing old table as old_rows
    for each statement execute function {delete_function}()

-- name: truncate_trigger
create trigger instep_truncate after truncate on {table}
    for each statement execute function {truncate_function}()

-- name: row_trigger
create trigger instep_row after insert or update or delete on {table}
    for each row execute function {row_function}()

-- name: enable_origin
alter table {table} enable trigger {trigger}

-- name: enable_always
alter table {table} enable always trigger {trigger}

-- name: enable_replica
alter table {table} enable replica trigger {trigger}

-- name: drop_trigger
drop trigger if exists {trigger} on {table}

-- name: drop_function
drop function if exists {function}()

-- name: family
-- The table, its partitions and its inheritance children, at any depth, parents first; with the triggers that bear
-- our names and how each is enabled. `inherits_row`: a partition gets its parent's row trigger as a clone.
with recursive family as (
    select c.oid, 0 as depth, false as inherits_row
    from pg_catalog.pg_class as c where c.oid = %(oid)s::oid and c.relkind in ('r', 'p')
    union
    select c.oid, f.depth + 1, c.relispartition
    from family as f
    join pg_catalog.pg_inherits as i on i.inhparent = f.oid
    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relkind in ('r', 'p', 'f')
)
select c.oid, n.nspname, c.relname, c.relkind::text, f.inherits_row,
    coalesce((select jsonb_object_agg(t.tgname, jsonb_build_array(t.tgenabled, p.proname))
        from pg_catalog.pg_trigger as t join pg_catalog.pg_proc as p on p.oid = t.tgfoid
        where t.tgrelid = c.oid and t.tgname like 'instep\_%%'
            and p.pronamespace = 'instep'::regnamespace), '{{}}') as triggers
from (select oid, min(depth) as depth, bool_or(inherits_row) as inherits_row from family group by oid) as f
join pg_catalog.pg_class as c on c.oid = f.oid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
order by f.depth, c.oid

-- name: watched
-- Type and place of columns as they are now: `value` is the type below a domain.
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnum, a.attgenerated::text
from pg_catalog.pg_attribute as a
where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
order by a.attnum
