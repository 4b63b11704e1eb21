-- The source as it is now: what every hit is held against before it is shown.

-- name: rows
-- The eligible rows that pass the filter. Only the source is in the scope of the user's expressions; both conditions
-- stand bare, so that an index of the user's can serve them.
(select {key}, {hash} as content_hash{more} from {relation} as a where ({eligible}) and ({filter}))

-- name: column
, {value} as {name}

-- name: text
{column}::text

-- name: shown
to_jsonb({column})

-- name: verify
-- A row that is gone, not eligible or outside the filter is absent. Texts are sent only of rows whose stamp is of
-- other content (or missing): their hits must be judged again.
with v as materialized (
    select {key_k}, a.content_hash is not distinct from s.content_hash as fresh{texts}
    from {key_unnest}
    join {live} a on {on_a_k}
    left join {stamp} s on {on_s_k} and s.target = %(target)s
)
select {key_v}, v.fresh{texts_if_stale} from v

-- name: text_if_stale
, case when not v.fresh then v.{name} end

-- name: page
select {key_k}{columns} from {key_unnest} join {live} a on {on_a_k}
