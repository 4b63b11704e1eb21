-- One wave's commit: fence, outputs (by the sink), stamps, entries. One transaction.

-- name: fence
-- The target's row first, then what is ours, in key order: each row looked up depends on the one before it.
-- What is not here any more, or has another token, is superseded.
select o.place, {key_o}, o.generation
from (select target from instep.target where id = %(id)s and state <> 'retired' for share) t
cross join (select {key_k} from {key_unnest} order by {key_k}) k
cross join lateral (
    select o.ctid as place, {key_o}, o.generation from {outbox} o
    where {on_o_k} and o.target = t.target and o.token = %(token)s for update) o

-- name: read_stamps
select {key_s}, s.content_hash from {key_unnest} join {stamp} s on {on_s_k} where s.target = %(target)s

-- name: stamp
insert into {stamp} ({key}, target, content_hash)
select {key_k}, %(target)s, k.hash from {key_hash_unnest} order by {key_k}
on conflict ({key}, target) do update set content_hash = excluded.content_hash, stamped_at = now()

-- name: unstamp
with gone as materialized (
    select s.ctid as place from {key_unnest} join {stamp} s on {on_s_k}
    where s.target = %(target)s order by {key_s} for update of s
)
delete from {stamp} s using gone where s.ctid = gone.place

-- name: finish
-- By the ctids of the rows that this transaction has locked.
with finished as (delete from {outbox} where ctid = any(%(finished)s::tid[]))
update {outbox} set lease_until = null, token = null, claims = 0 where ctid = any(%(moved)s::tid[])
