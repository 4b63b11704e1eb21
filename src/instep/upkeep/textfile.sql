-- name: stamps
-- The last start, finish and success of a derivation's runs, in seconds since 1970; null: never.
select extract(epoch from max(started_at))::float8, extract(epoch from max(finished_at))::float8,
    extract(epoch from max(finished_at) filter (where outcome = 'ok'))::float8,
    extract(epoch from max(seen_at))::float8
from instep.run where derivation = %(derivation)s
