-- The types of filter columns, and how each kind is read for an index. Nothing here can fail on odd rows:
-- infinite dates and numbers beyond float8 are clamped.

-- name: read
-- A domain counts as the type it stands on.
select a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null), t.typtype = 'e'
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = %(relation)s::oid and a.attnum > 0 and not a.attisdropped and a.attname = any(%(names)s::text[])

-- name: encode_text
{column}::text

-- name: encode_uuid
{column}::text

-- name: encode_integer
{column}::bigint

-- name: encode_number
(case when {column}::numeric > 1e308 then 'infinity' when {column}::numeric < -1e308 then '-infinity'
      else {column}::float8 end)::float8

-- name: encode_boolean
{column}::boolean

-- name: encode_moment
case when isfinite({column}) then least(greatest(extract(epoch from {column})::numeric * 1000000,
        '-9223372036854775808'), '9223372036854775807')::bigint
     when {column} > 'epoch' then '9223372036854775807'::bigint
     when {column} < 'epoch' then '-9223372036854775808'::bigint end

-- name: encode_texts
{column}::text[]
