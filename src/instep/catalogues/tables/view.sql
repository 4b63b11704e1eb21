-- What the user reads: the chunks of the target that is read now, in order, under his own key's names.
-- It names our tables alone: no ALTER TABLE of his is ever held up by it (docs/decisions/0003-chunks-view.md).

-- name: create
create view {view} as
select {keys}, (p.place - 1)::integer as {ordinal}, p.starts as {start}, p.ends as {end}, c.text as {text},
    c.text_hash as {text_hash}, c.vector as {vector}
from {layout} l
cross join lateral unnest(l.text_hashes, l.starts, l.ends) with ordinality as p(text_hash, starts, ends, place)
join {chunk} c on {on_c_l} and c.text_hash = p.text_hash

-- name: key_column
l.{ours} as {theirs}

-- name: drop
drop view if exists {view}

-- name: leftovers
-- Tables of outputs of a source of that name, whatever its targets were: chunks, and words in PostgreSQL.
select relname::text from pg_class
where relnamespace = 'instep'::regnamespace and relkind = 'r'
    and (relname ~ ('^(chunk|layout)_' || %(name)s || '_embed_[0-9]+$') or relname ~ ('^lexical_' || %(name)s || '_search_[0-9]+$'))
order by 1

-- name: drop_table
drop table if exists {table}
