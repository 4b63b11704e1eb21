-- Nearest chunks. Distances are cosine; chunks of one row may follow one another, the caller keeps the best.

-- name: nearest
-- Of the whole table: rows that are gone meanwhile are dropped by the caller. An HNSW index serves the order.
select {key_c}, c.text_hash, c.vector {distance} %(vector)s::{type} as distance
from {chunk} c
order by c.vector {distance} %(vector)s::{type}
limit %(limit)s

-- name: nearest_kept
-- Under a filter that keeps much: the index is walked on (hnsw.iterative_scan) until enough rows pass.
select {key_c}, c.text_hash, c.vector {distance} %(vector)s::{type} as distance
from {chunk} c
where exists (select 1 from {live} a where {on_a_c})
order by c.vector {distance} %(vector)s::{type}
limit %(limit)s

-- name: count_kept
select count(*) from (select 1 from {live} a limit %(limit)s) k

-- name: exact_kept
-- Under a filter that keeps little: the distance of each kept row's chunks. The order is by distance + 0, which no
-- index serves: walking one towards rows that are nowhere near would find too few.
with f as materialized (select {key_a} from {live} a),
d as materialized (
    select {key_c}, c.text_hash, c.vector {distance} %(vector)s::{type} as distance
    from f a join {chunk} c on {on_a_c}
)
select {key_c}, c.text_hash, c.distance from d c order by c.distance + 0 limit %(limit)s

-- name: chunks
-- Where the hits stand. An array's subscript begins with 1, an ordinal with 0. Without a layout the chunk is all there is.
select {key_k}, c.text,
    case when l.text_hashes is null then 0 else p.place - 1 end,
    case when l.text_hashes is null then 0 else l.starts[p.place] end,
    case when l.text_hashes is null then length(c.text) else l.ends[p.place] end
from {key_hash_unnest}
join {chunk} c on {on_c_k} and c.text_hash = k.hash
left join {layout} l on {on_l_k}
left join lateral (select array_position(l.text_hashes, k.hash) as place) p on true
