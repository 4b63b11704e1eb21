-- A small real derivation for tests of the engine: upper-cased text of one column, in a table of its own.

-- name: create
create table if not exists instep.toy ({key_definitions}, target text not null, shout text not null, primary key ({key}, target))

-- name: load
-- Where several rows make one entity, the text of the eligible ones.
select {key_a}, a.content_hash,
    (select string_agg(r.{text}, ' ' order by r.{text}) from {relation} r where {on_row} and ({eligible}))
from {key_unnest} join {source_a_k} where a.eligible

-- name: delete
delete from instep.toy t using {key_unnest} where {on_t_k} and t.target = %(target)s

-- name: insert
insert into instep.toy ({key}, target, shout) select {key_k}, %(target)s, k.shout from {key_shout_unnest}

-- name: drop
delete from instep.toy where target = %(target)s

-- name: all
select {key}, shout from instep.toy where target = %(target)s order by {key}
