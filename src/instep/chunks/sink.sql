-- The two tables of one target of an embedding derivation. They never name the user's table: it may be altered
-- freely, and what is gone from it is cleared by the engine.

-- name: create_chunk
create table if not exists {chunk} (
    {key_definitions},
    text_hash bytea not null,           -- sha256 of the exact text sent to the model, its prefix included
    text text not null,                 -- without the prefix
    vector {vector} not null,
    primary key ({key}, text_hash)      -- equal texts of one entity share a row
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)

-- name: store_plain
-- Before the first row: a vector beside its text is read without another fetch (the exact scan lives on that).
alter table {chunk} alter column vector set storage plain, alter column text set storage main

-- name: create_layout
-- Ordinals and spans stand apart: a paragraph put on top renumbers all, and must rewrite no vector.
-- An entity whose one chunk is its whole text has no row: short texts, which are most, cost one write less.
create table if not exists {layout} (
    {key_definitions},
    text_hashes bytea[] not null,       -- in ordinal order
    starts integer[] not null,          -- spans in characters of the entity's text
    ends integer[] not null,
    primary key ({key})
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)

-- name: stands
select to_regclass(%(chunk)s) is not null

-- name: read_old
-- The hashes come from the chunk rows themselves, not from the layout: an orphan must be found.
select k.place, c.text_hashes, l.text_hashes, l.starts, l.ends
from {keys_placed}
left join lateral (select array_agg(c.text_hash) as text_hashes from {chunk} c where {on_c_k}) c on true
left join {layout} l on {on_l_k}
where c.text_hashes is not null or l.text_hashes is not null

-- name: delete_chunks
delete from {chunk} c using {keys_hashed} where {on_c_k} and c.text_hash = k.text_hash

-- name: delete_layouts
delete from {layout} l using {keys} where {on_l_k}

-- name: copy_chunks
copy {chunk} ({key}, text_hash, text, vector) from stdin (format binary)

-- name: copy_layouts
copy {layout} ({key}, text_hashes, starts, ends) from stdin (format binary)

-- name: drop
drop table if exists {chunk}, {layout}

-- name: describe
select coalesce(cardinality(l.text_hashes), c.vectors), coalesce(l.ends[cardinality(l.ends)], c.characters), c.vectors
from (
    select count(*) as vectors, coalesce(max(length(c.text)), 0) as characters
    from {chunk} c where ({key_c}) = ({key_values})
) c
left join {layout} l on ({key_l}) = ({key_values})
