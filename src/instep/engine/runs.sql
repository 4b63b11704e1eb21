-- name: runs
select id, started_at, finished_at, extract(epoch from coalesce(finished_at, seen_at) - started_at)::float8,
    coalesce(outcome, case when seen_at > now() - make_interval(secs => %(alive)s) then 'running' else 'lost' end),
    coalesce(detail, ''), counters
from instep.run
where derivation = %(derivation)s and (%(before)s::bigint is null or id < %(before)s)
order by id desc limit %(limit)s offset %(offset)s
