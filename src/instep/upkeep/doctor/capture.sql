-- What is recorded of a source, and what feeds or hides its rows.

-- name: template
select template from instep.source where name = %(source)s

-- name: suspect
select count(*) from instep.marker as m
where m.source = %(source)s and m.kind = 'suspect'
    and m.seq > coalesce((select min(d.swept_marker) from instep.derivation as d where d.source = m.source), 0)

-- name: partitions
select partitions from instep.source where name = %(source)s

-- name: row_security
select oid from pg_class where oid = %(oid)s::oid and relrowsecurity

-- name: subscriptions
select distinct s.subname, s.subenabled
from pg_subscription_rel as r join pg_subscription as s on s.oid = r.srsubid
where r.srrelid = any(%(oids)s::oid[]) order by 1

-- name: enable_subscription
alter subscription {name} enable

-- name: disinherit
-- A child by inheritance: a partitioned table with a unique key takes no foreign partition.
alter foreign table {child} no inherit {table}
