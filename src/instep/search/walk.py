"""All rows that hold the words of a query, page by page in the order of their keys: for what no window of best hits reaches.

A page starts after a key, so it misses nothing that stays, and shows nothing twice, whatever is written meanwhile. Like
every search it shows living rows alone: a page may be shorter than asked for, and still not be the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from instep.engine.declaration import Key
from instep.errors import Refused
from instep.search.answers import Result
from instep.search.engines.postgres import Connect
from instep.search.filter_syntax import parse_filter
from instep.search.lexical import matches
from instep.search.live import Live, page_rows
from instep.search.ports import Query, query_terms
from instep.search.search import Request, Searchable
from instep.text.clean import clean
from instep.text.compose import entity_text
from instep.text.highlight import highlight
from instep.text.segment import query_tokens


@dataclass(frozen=True, slots=True)
class Walked:
    """`following`: the key after which the next page begins; None: there is no more."""

    results: tuple[Result, ...]
    following: Key | None


async def walk(searchable: Searchable, connect: Connect, request: Request, after: Key | None) -> Walked:
    """Of `request`, its text, filter and limit count. Raises Refused as a search does."""
    lexical, text = searchable.lexical, clean(request.text).strip()
    if lexical is None:
        raise Refused(f"{searchable.declaration.source.name} has no lexical index")
    if not text:
        raise Refused("the query is empty", hint="say what to look for")
    filter = parse_filter(request.where, searchable.columns) if request.where.strip() else None
    terms = query_terms(text)
    found = await lexical.index.matching(Query(terms, filter, request.limit + 1), after)
    keys = list(found[: request.limit])
    declaration = lexical.declaration
    async with connect() as conn:
        seen = await Live(declaration, lexical.target, lexical.text, filter).verify(conn, keys)
        living = [
            key
            for key in keys
            if key in seen and (seen[key].fresh or matches(terms, entity_text(seen[key].texts or ()), "all"))
        ]
        rows = await page_rows(conn, declaration, filter, living, lexical.text, searchable.show)
    results = []
    for key in living:
        if key in rows:
            snippet = highlight(entity_text(rows[key].texts), query_tokens(text), size=request.snippet_size)
            results.append(Result(key, 0.0, snippet.text, snippet.spans, {}, None, rows[key].shown))
    return Walked(tuple(results), keys[-1] if len(found) > request.limit else None)
