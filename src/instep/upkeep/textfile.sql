-- name: last_run
-- The last run's counters and length, and when runs last started, ended, succeeded and were seen (seconds since 1970;
-- null: never).
select r.counters, extract(epoch from coalesce(r.finished_at, r.seen_at) - r.started_at)::float8,
    (select extract(epoch from max(started_at))::float8 from instep.run where derivation = r.derivation),
    (select extract(epoch from max(finished_at))::float8 from instep.run where derivation = r.derivation),
    (select extract(epoch from max(finished_at) filter (where outcome = 'ok'))::float8 from instep.run where derivation = r.derivation),
    (select extract(epoch from max(seen_at))::float8 from instep.run where derivation = r.derivation)
from instep.run r where r.derivation = %(derivation)s order by r.id desc limit 1
