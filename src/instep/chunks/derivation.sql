-- Reading the rows of a wave. Each statement sees one snapshot: the hash that is stamped belongs to the content.

-- name: load_short
-- One pass, where every row is so short that all fit. A longer one comes without content: then `load` reads them.
select k.place, s.short, s.content_hash, s.size, {texts_s}
from {keys_placed} join {short} s on {on_s_k}
where s.eligible

-- name: short
(select {selected_key}, ({eligible}) is true as eligible, {size} as size, {size} <= %(each)s::bigint as short,
    case when {size} <= %(each)s::bigint then {hash} end as content_hash, {short_columns} from {relation} as a)

-- name: short_column
case when {size} <= %(each)s::bigint then {value} end as {name}

-- name: load
-- First sizes alone (no value is fetched from its out-of-line storage), then hash and content of as many as fit,
-- the first of the wave in any case. A row without content is one that did not fit.
with sized as materialized (
    select k.place, {key_k}, s.size, sum(s.size) over (order by k.place rows unbounded preceding) as running
    from {keys_placed} join {sizes} s on {on_s_k}
    where s.eligible
)
select z.place, c.present, c.content_hash, z.size, {texts}
from sized z left join {contents} c on {on_c_z}
    and (z.running <= %(limit)s::bigint or z.place = (select min(place) from sized))

-- name: sizes
(select {selected_key}, ({eligible}) is true as eligible, {size} as size from {relation} as a)

-- name: contents
(select {selected_key}, true as present, {hash} as content_hash, {columns} from {relation} as a)

-- name: existing
-- Key by key: as a join, without statistics, it was a merge that read the whole index (test_chunks_plans.py).
select k.place, c.text_hash
from {keys_placed} cross join lateral (select c.text_hash from {chunk} c where {on_c_k} offset 0) c
