-- What makes of tables that an older release made from its templates (parts.sql) what is made now:
-- `upgrade_N_source`, once for a source, and `upgrade_N_derivation`, for each of its derivations, lead from template N - 1
-- to N. tests/faults/test_schema.py goes back to template 1 and compares.

-- name: recorded
select template from instep.source where name = %(name)s

-- name: upgrade_2_derivation
-- Beyond 2^31 an absorb of that entry failed, and with it every absorb of the source.
alter table {outbox} alter column generation type bigint
