-- What a run leaves behind for status and the page. The end of a run commits synchronously.

-- name: start
insert into instep.run (derivation) values (%(derivation)s) returning id

-- name: seen
update instep.run set seen_at = now(), counters = %(counters)s where id = %(id)s

-- name: finish
update instep.run
set seen_at = now(), finished_at = now(), outcome = %(outcome)s, detail = %(detail)s, counters = %(counters)s
where id = %(id)s

-- name: forget_stamps
-- The output outside PostgreSQL is not what the stamps say: everything is made again.
delete from {stamp} where target = %(target)s
