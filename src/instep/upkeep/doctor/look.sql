-- What doctor's own session is.

-- name: session
select name, setting from pg_settings
where name in ('default_transaction_read_only', 'session_replication_role', 'statement_timeout', 'transaction_timeout')

-- name: bounded
-- Doctor never hangs, and never stands in a user's way.
select set_config('statement_timeout', '20s', false), set_config('lock_timeout', '2s', false),
    set_config('application_name', 'instep doctor', false)
