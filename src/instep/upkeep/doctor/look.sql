-- name: session
-- What a worker's session has of settings that may stop its work.
select name, setting from pg_settings
where name in ('default_transaction_read_only', 'session_replication_role', 'statement_timeout', 'transaction_timeout')
