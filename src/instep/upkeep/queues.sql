-- name: silent
-- Runs that have not said that they ended; those that have been silent for a day are of no interest any more.
select derivation, max(extract(epoch from now() - seen_at))::float8
from instep.run where finished_at is null and seen_at > now() - interval '1 day' and not closed
group by derivation

-- name: failed
select count(*) from {outbox} where failed_at > now() - interval '24 hours' and discarded_at is null
