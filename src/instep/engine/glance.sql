-- name: glance
-- Three counts, each of them bounded: it never costs more than so many entries, however long the queue is.
select (select count(*) from (select 1 from {outbox} where failed_at is null limit %(bound)s) w),
    (select count(*) from (select 1 from {change} where derivations & %(bit)s <> 0 limit %(bound)s) c),
    (select count(*) from (
        select 1 from {outbox} where failed_at is not null and discarded_at is null limit %(bound)s) d)
