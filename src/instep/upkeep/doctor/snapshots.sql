-- What holds old snapshots back.

-- name: sessions
-- A build of an index holds a snapshot for good reason; the one that guards it holds none.
select a.pid, a.application_name, a.usename, host(a.client_addr), a.state,
    extract(epoch from clock_timestamp() - a.xact_start)::float8,
    greatest(age(a.backend_xmin), age(a.backend_xid))
from pg_stat_activity as a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    and a.xact_start < clock_timestamp() - make_interval(secs => %(oldest)s)
    and not (a.application_name = 'instep' and a.backend_xmin is null and a.backend_xid is null)
    and not exists (select from pg_stat_progress_create_index as p where p.pid = a.pid)
order by a.xact_start

-- name: prepared
select gid, owner, extract(epoch from clock_timestamp() - prepared)::float8
from pg_prepared_xacts
where database = current_database() and prepared < clock_timestamp() - make_interval(secs => %(oldest)s)
order by prepared

-- name: slots
-- A catalogue horizon keeps no row of ours.
select slot_name, plugin, age(xmin) from pg_replication_slots where xmin is not null and not active order by 1

-- name: hidden
-- Without pg_read_all_stats other roles' sessions are there, and nothing of what they do.
select count(*) from pg_stat_activity
where datname = current_database() and backend_type is null and pid <> pg_backend_pid()

-- name: end_session
select pg_terminate_backend({pid})

-- name: roll_back
rollback prepared {gid}

-- name: drop_slot
select pg_drop_replication_slot({name})

-- name: let_see
grant pg_read_all_stats to {role}
