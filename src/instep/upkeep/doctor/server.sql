-- What doctor asks of the server, and the statements that mend it.

-- name: recovery
select pg_is_in_recovery(), (select sender_host from pg_stat_wal_receiver), (select sender_port from pg_stat_wal_receiver)

-- name: clock
select clock_timestamp()

-- name: create_pgvector
create extension if not exists vector

-- name: update_pgvector
alter extension vector update

-- name: search_path
alter database {database} set search_path = public, {schema}

-- name: promote
select pg_promote()

-- name: set_for_role
-- The narrowest place, which nothing but a connection's own options goes before.
alter role {role} in database {database} set {name} = {value}

-- name: set_for_role_where_nothing_may_be_written
begin read write; alter role {role} in database {database} set {name} = {value}; commit
