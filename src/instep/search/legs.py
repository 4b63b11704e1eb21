"""What both legs of a search share: candidates are fetched, held against the living rows, and fetched again, more of
them, until enough live or there are no more; so a long queue of deleted rows never makes a page short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from instep.engine.declaration import Key
from instep.search.live import Verified
from instep.search.ports import Facet

MAX_CANDIDATES = 50_000
"""Where a leg stops looking for living hits among dead ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    key: Key
    score: float
    text_hash: bytes | None = None  # of the chunk, where it is one


@dataclass(frozen=True, slots=True)
class Leg:
    """Living hits, best first, each row once. `total` is about how many rows there are; `dropped` how many
    candidates were gone, no longer eligible, or matched only by what they used to say."""

    candidates: Sequence[Candidate]
    total: int
    dropped: int = 0
    facets: Mapping[str, Sequence[Facet]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """`exhausted`: there are no more than these."""

    candidates: Sequence[Candidate]
    exhausted: bool


Fetch = Callable[[int], Awaitable[Fetched]]
Verify = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Verified]]]
Judge = Callable[[Candidate, Verified], bool]


async def living(verify: Verify, wanted: int, fetch: Fetch, judge: Judge) -> tuple[list[Candidate], int]:
    """The best `wanted` living candidates, one for each row, and how many rows were dropped. `judge` decides on a row
    whose content is not the one that its outputs were made from."""
    limit, verified = wanted, dict[Key, Verified | None]()
    while True:
        fetched = await fetch(limit)
        unknown = list(dict.fromkeys(c.key for c in fetched.candidates if c.key not in verified))
        found = await verify(unknown)
        verified.update((key, found.get(key)) for key in unknown)
        kept: dict[Key, Candidate] = {}
        for candidate in fetched.candidates:
            row = verified[candidate.key]
            if row is not None and candidate.key not in kept and (row.fresh or judge(candidate, row)):
                kept[candidate.key] = candidate
        if len(kept) >= wanted or fetched.exhausted or limit >= MAX_CANDIDATES:
            seen = dict.fromkeys(candidate.key for candidate in fetched.candidates)
            return list(kept.values())[:wanted], len(seen) - len(kept)
        limit = min(MAX_CANDIDATES, limit * 4)
