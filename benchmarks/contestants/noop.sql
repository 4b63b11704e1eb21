-- The no-op derivation of the benchmark.

-- name: load
select {key_a}, r.title, a.content_hash
from {key_unnest} join {source_a_k} join items r on r.id = a.key_1 where a.eligible
