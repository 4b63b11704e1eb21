"""The lexical leg: rows that hold the words of the query, all of them or, where none does, any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from instep.engine.declaration import Declaration, Key, Target
from instep.search.engines.postgres import Connect
from instep.search.filters import Filter
from instep.search.legs import Candidate, Fetched, Leg, living
from instep.search.live import Live, Verified
from instep.search.ports import Hits, Index, Match, Query, Terms, words_of
from instep.text.compose import entity_text

ANY_WORD = "no row holds all words of the query: those that hold some of them"


@dataclass(frozen=True, slots=True)
class Lexical:
    """What the lexical leg of a table needs: the reading target's index."""

    declaration: Declaration
    target: Target
    index: Index

    @property
    def text(self) -> Sequence[str]:
        columns: Sequence[str] = self.declaration.options["text"]
        return columns


async def matching_rows(
    connect: Connect, lexical: Lexical, terms: Terms, filter: Filter | None, wanted: int, facets: bool
) -> Leg:
    """The `wanted` best rows; `total` and facets count what the index holds, `total` less what was seen to be dead.

    No connection is held while the index is asked, which may need one itself: a small pool serves many searches.
    """
    leg = await _matching(connect, lexical, Query(terms, filter, wanted, "all", facets))
    if leg.candidates or len(terms) < 2:
        return leg
    some = await _matching(connect, lexical, Query(terms, filter, wanted, "any", facets))
    note = ANY_WORD if some.candidates else ""
    return Leg(some.candidates, some.total, leg.dropped + some.dropped, some.facets, note)


async def _matching(connect: Connect, lexical: Lexical, query: Query) -> Leg:
    live = Live(lexical.declaration, lexical.target, lexical.text, query.filter)
    latest = Hits((), 0)

    async def fetch(limit: int) -> Fetched:
        nonlocal latest
        facets = query.facets and not latest.facets
        found = await lexical.index.search(Query(query.terms, query.filter, limit, query.match, facets))
        latest = Hits(found.hits, found.total, found.facets or latest.facets)
        return Fetched([Candidate(hit.key, hit.score) for hit in found.hits], len(found.hits) < limit)

    def judge(candidate: Candidate, row: Verified) -> bool:
        return matches(query.terms, entity_text(row.texts or ()), query.match)

    async def verify(keys: Sequence[Key]) -> Mapping[Key, Verified]:
        async with connect() as conn:
            return await live.verify(conn, keys)

    kept, dropped = await living(verify, query.limit, fetch, judge)
    return Leg(kept, max(len(kept), latest.total - dropped), dropped, latest.facets)


def matches(terms: Terms, text: str, match: Match) -> bool:
    """Whether a text would be hit by a query, by the words that an index would hold of it."""
    words = set(words_of(text))
    found = (words.issuperset(tokens) for tokens in terms)
    return all(found) if match == "all" else any(found)
