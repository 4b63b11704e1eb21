-- What the user reads: the chunks of the target that is read now, in order, under his own key's names.
-- It names our tables alone: no ALTER TABLE of his is ever held up by it (docs/decisions/0003-chunks-view.md).
-- Without a layout the chunk is its row's whole text.

-- name: create
create view {view} as
select {keys}, coalesce(p.place - 1, 0)::integer as {ordinal}, coalesce(p.starts, 0) as {start},
    coalesce(p.ends, length(c.text)) as {end}, c.text as {text}, c.text_hash as {text_hash}, c.vector as {vector}
from {chunk} c
left join {layout} l on {on_c_l}
left join lateral unnest(l.text_hashes, l.starts, l.ends) with ordinality as p(text_hash, starts, ends, place)
    on p.text_hash = c.text_hash
where l.text_hashes is null or p.place is not null

-- name: key_column
c.{ours} as {theirs}

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
