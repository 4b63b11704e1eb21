-- Reading the rows of a wave: hash, text and filter columns of a row in one statement, from one snapshot.

-- name: load
-- First sizes alone (no value is fetched from its out-of-line storage), then as many as fit, the first of the wave
-- in any case. A row without content is one that did not fit.
with sized as materialized (
    select k.place, {key_k}, sum(a.size) over (order by k.place) as running
    from {keys_placed} join {sizes} a on {on_a_k}
)
select z.place, c.present, c.content_hash{contents}
from sized z left join {rows} c on {on_c_z}
    and (z.running <= %(limit)s::bigint or z.place = (select min(place) from sized))

-- name: size
{left} + coalesce(octet_length({column}::text), 0)
