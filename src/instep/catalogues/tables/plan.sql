-- What a plan needs to know of a table: how many rows, and how long their texts are, from a sample.

-- name: count
select count(*), count(*) filter (where s.eligible) from {source_rows} s

-- name: sample
-- Rows by chance, or whole pages where the table is very large: a plan must not read it all. Mixed before the cut, which would
-- else take the first pages alone.
select {texts} from {relation} as a {tablesample} where ({eligible}) is true order by random() limit %(limit)s

-- name: rows_by_chance
tablesample bernoulli ({percent})

-- name: pages_by_chance
tablesample system ({percent})
