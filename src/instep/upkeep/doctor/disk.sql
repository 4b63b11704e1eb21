-- name: shown
select pg_has_role('pg_read_all_settings', 'usage') and has_function_privilege('pg_control_system()', 'execute')

-- name: places
select current_setting('data_directory'), (select system_identifier from pg_control_system()),
    coalesce((select jsonb_agg(jsonb_build_array(spcname, pg_tablespace_location(oid)))
        from pg_tablespace where pg_tablespace_location(oid) <> ''), '[]')
