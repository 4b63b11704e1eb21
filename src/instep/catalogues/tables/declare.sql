-- The expressions of a table's two derivations. They name the source's columns alone, unqualified.

-- name: part
instep.part({column}::text)

-- name: both
{left} || {right}

-- name: content_hash
instep.content_hash({parts})
