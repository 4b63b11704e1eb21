-- name: names
-- Sources and derivations whose names begin as typed.
select name
from (select name from instep.source union select name from instep.derivation) as known
where starts_with(name, %(begins)s::text)
order by name
