-- The lexical index in PostgreSQL: one row for each entity, in a table of the target's own. The words are ours
-- (`instep.text.segment`), so a CJK run is found here as in the other engine; filters and facets are read from the
-- source as it is now, not copied.

-- name: stands
-- Asked first, by each run: `create index if not exists` locks the table before it looks, and so waits for writers.
select to_regclass({stands}) is not null

-- name: create
-- In one message, so in one transaction: `if not exists` fails where two workers do it at once.
select pg_advisory_xact_lock(hashtextextended('instep.install', 0));
create table if not exists {lexical} (
    {key_definitions},
    words tsvector not null,
    primary key ({key})
);
create index if not exists {lexical_index} on {lexical} using gin (words)

-- name: drop
drop table if exists {lexical}

-- name: lock
-- In key order, as every statement that locks several rows.
with locked as materialized (
    select {key_l} from {lexical} l where ({key_l}) in (select {key_k} from {key_unnest}) order by {key_l} for update
)
delete from {lexical} l using locked d where {on_d_l}

-- name: copy
copy {lexical} ({key}, words) from stdin

-- name: search
-- The source is asked here only for a filter, where there is one.
select {key_l}, ts_rank_cd(l.words, q.query, 1) as rank, count(*) over () as total
from (select %(query)s::tsquery as query) q, {lexical} l
where l.words @@ q.query and {passes}
order by rank desc, {key_l}
limit %(limit)s

-- name: passes
exists (select 1 from {live} a where {on_a_l})

-- name: matching
select {key_l} from (select %(query)s::tsquery as query) q, {lexical} l
where l.words @@ q.query and {passes} and {behind}
order by {key_l}
limit %(limit)s

-- name: behind
({key_l}) > ({key_values})

-- name: facet
select v.value, count(*) as total
from {lexical} l join {live} a on {on_a_l} cross join lateral {values}
where l.words @@ %(query)s::tsquery and v.value is not null
group by v.value
order by total desc, v.value
limit %(limit)s

-- name: one_value
(select {column} as value) v

-- name: each_value
(select distinct e.value from unnest({column}) as e(value)) v

-- name: keys
select {key} from {lexical}
