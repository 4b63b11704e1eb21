"""One search: its legs at once, each on a connection of its own, then fusion, then the page from the rows as they are.

In hybrid mode a leg whose backend is out is left out, and the answer says so (`semantic`, `notes`); asked for alone,
its failure is the search's. Trouble with PostgreSQL itself is always an error. So is a leg left out that is late, where
the request has a budget: what it was doing is cancelled, and nobody waits for the end of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instep.clock import SYSTEM, Clock
from instep.engine.declaration import Declaration, Key
from instep.errors import Configuration, InstepError, Outage, Permanent, Refused
from instep.search.answers import Answer, FoundChunk, Mode, Result, Semantic
from instep.search.columns import Column
from instep.search.dense import Chunk, Dense, hit_chunks, nearest_rows, query_vector
from instep.search.engines.postgres import Connect
from instep.search.filter_syntax import parse_filter
from instep.search.filters import Filter
from instep.search.fusion import Fused, fuse
from instep.search.legs import Leg
from instep.search.lexical import Lexical, matching_rows
from instep.search.live import Row, page_rows
from instep.search.ports import Terms, query_terms
from instep.text.clean import clean
from instep.text.compose import entity_text
from instep.text.highlight import highlight
from instep.text.segment import query_tokens

MAX_WINDOW = 10_000
LEGS_SHARE = 0.9  # of the budget: the rest is for the rows of the page
_DEPTH = 100  # candidates of each leg that are fused, at least: fusion gains from what is not on the page


@dataclass(frozen=True, slots=True)
class Searchable:
    """A table that can be searched: what the app builds, cheaply, for a query. At least one leg is there.
    `columns`: those that filters may name (`read_columns`); `show`: those that results carry."""

    lexical: Lexical | None
    dense: Dense | None
    columns: Sequence[Column] = ()
    show: Sequence[str] = ()

    @property
    def declaration(self) -> Declaration:
        leg = self.lexical or self.dense
        assert leg is not None, "a searchable table has at least one leg"
        return leg.declaration


@dataclass(frozen=True, slots=True)
class Request:
    """`where`: a filter, as `parse_filter` takes it. `facets`: counts of the filter columns are wanted."""

    text: str
    mode: Mode = "hybrid"
    where: str = ""
    limit: int = 10
    offset: int = 0
    facets: bool = False
    snippet_size: int = 160
    budget: float | None = None  # seconds: a leg that is later is left out; None: every leg is waited for


async def search(searchable: Searchable, connect: Connect, request: Request, clock: Clock = SYSTEM) -> Answer:
    """Raises Refused for an empty query, a filter that is not understood, a page beyond MAX_WINDOW or a mode that the
    table has no index for; Outage, Configuration or Permanent where the only leg asked for cannot answer."""
    began = clock.monotonic()
    text = _checked(searchable, request)
    filter = parse_filter(request.where, searchable.columns) if request.where.strip() else None
    work = _Work(searchable, connect, request, text, filter, query_terms(text))
    legs, failures = await work.legs()
    if not legs:
        raise next(iter(failures.values()))
    window = request.offset + request.limit
    fused = _ordered(legs, request.mode)[request.offset : window]
    left = None if request.budget is None else request.budget - (clock.monotonic() - began)
    try:
        async with asyncio.timeout(left):
            rows, chunks = await work.page(fused, legs)
    except TimeoutError:
        raise Outage(f"the rows of the page were not read within {request.budget:g} s") from None
    results = [work.result(row, rows[row.key], chunks.get(row.key)) for row in fused if row.key in rows]
    lexical = legs.get("lexical")
    return Answer(
        results=results,
        total_about=max(
            len({c.key for leg in legs.values() for c in leg.candidates}),
            *(leg.total for leg in legs.values()),
        ),
        semantic=_semantic(searchable, request.mode, legs),
        legs=list(legs),
        stale=sum(leg.dropped for leg in legs.values()) + len(fused) - len(results),
        seconds=clock.monotonic() - began,
        facets=lexical.facets if lexical else {},
        notes=_notes(searchable, request.mode, legs, failures),
    )


def _checked(searchable: Searchable, request: Request) -> str:
    text = clean(request.text).strip()
    if not text:
        raise Refused("the query is empty", hint="say what to look for: instep search NAME WORDS…")
    if request.limit < 1 or request.offset < 0 or request.offset + request.limit > MAX_WINDOW:
        raise Refused(
            f"limit {request.limit} with offset {request.offset}: the limit is at least 1, and both together at "
            f"most {MAX_WINDOW:,}",
        )
    name = searchable.declaration.source.name
    if request.mode not in ("dense", "lexical", "hybrid"):
        raise Refused(f"mode {request.mode!r} is none of dense, lexical, hybrid")
    if request.mode == "dense" and searchable.dense is None:
        raise Refused(f"{name} has no embeddings to search", hint="search it with --mode lexical")
    if request.mode == "lexical" and searchable.lexical is None:
        raise Refused(f"{name} has no lexical index", hint="search it with --mode dense")
    if request.facets and (searchable.lexical is None or request.mode == "dense"):
        raise Refused("facets are counted over what the words of the query find: --mode lexical or hybrid")
    return text


@dataclass(frozen=True, slots=True)
class _Work:
    searchable: Searchable
    connect: Connect
    request: Request
    text: str
    filter: Filter | None
    terms: Terms

    async def legs(self) -> tuple[dict[str, Leg], dict[str, InstepError]]:
        """Those that answered, in the order in which they are named, and why the others did not."""
        running: dict[str, Coroutine[Any, Any, Leg]] = {}
        if self.request.mode != "lexical" and self.searchable.dense is not None:
            running["dense"] = self._dense(self.searchable.dense)
        if self.request.mode != "dense" and self.searchable.lexical is not None:
            running["lexical"] = self._lexical(self.searchable.lexical)
        named = await self._in_time(
            {name: asyncio.create_task(_answered(leg)) for name, leg in running.items()}
        )
        return (
            {name: answer for name, answer in named.items() if isinstance(answer, Leg)},
            {name: answer for name, answer in named.items() if isinstance(answer, InstepError)},
        )

    async def _in_time(
        self, tasks: Mapping[str, asyncio.Task[Leg | InstepError]]
    ) -> dict[str, Leg | InstepError]:
        """What each leg answered. Raises what no leg may be left out for: the first says it."""
        budget = self.request.budget
        seconds = None if budget is None else budget * LEGS_SHARE
        try:
            done, _ = await asyncio.wait(tasks.values(), timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks.values():
                _let_go(task)
        late = Outage(f"it was not there after {seconds or 0:.3g} s")
        return {name: task.result() if task in done else late for name, task in tasks.items()}

    @property
    def _wanted(self) -> int:
        window = self.request.offset + self.request.limit
        return max(_DEPTH, window) if self.request.mode == "hybrid" else window

    async def _dense(self, dense: Dense) -> Leg:
        vector = await query_vector(dense, self.text)
        async with self.connect() as conn:
            return await nearest_rows(conn, dense, vector, self.filter, self._wanted)

    async def _lexical(self, lexical: Lexical) -> Leg:
        return await matching_rows(
            self.connect, lexical, self.terms, self.filter, self._wanted, self.request.facets
        )

    async def page(
        self, fused: Sequence[Fused], legs: Mapping[str, Leg]
    ) -> tuple[dict[Key, Row], dict[Key, Chunk]]:
        keys = [row.key for row in fused]
        searchable, declaration = self.searchable, self.searchable.declaration
        text = declaration.options["text"]
        async with self.connect() as conn:
            rows = await page_rows(conn, declaration, self.filter, keys, text, searchable.show)
            if searchable.dense is None or "dense" not in legs:
                return rows, {}
            wanted = set(keys)
            hits = {c.key: c.text_hash for c in legs["dense"].candidates if c.key in wanted and c.text_hash}
            return rows, await hit_chunks(conn, searchable.dense, hits)

    def result(self, fused: Fused, row: Row, chunk: Chunk | None) -> Result:
        text, place = entity_text(row.texts), None
        if chunk is not None:
            place = _place(text, chunk)
            if "lexical" not in fused.ranks and place.start is not None:
                text = text[place.start : place.end]
        snippet = highlight(text, query_tokens(self.text), size=self.request.snippet_size)
        return Result(fused.key, fused.score, snippet.text, snippet.spans, fused.ranks, place, row.shown)


_LEAVING: set[asyncio.Task[Leg | InstepError]] = set()  # the loop itself keeps no task alive


def _let_go(task: asyncio.Task[Leg | InstepError]) -> None:
    """Cancel what is not done, and see to its end: a connection it holds goes back to the pool then."""
    task.cancel()  # changes nothing where it is done
    _LEAVING.add(task)
    task.add_done_callback(_left)


def _left(task: asyncio.Task[Leg | InstepError]) -> None:
    _LEAVING.discard(task)
    if not task.cancelled():
        task.exception()  # it failed while it was leaving: nobody is there to be told


async def _answered(leg: Coroutine[Any, Any, Leg]) -> Leg | InstepError:
    try:
        return await leg
    except (Outage, Configuration, Permanent) as error:
        return error


def _place(text: str, chunk: Chunk) -> FoundChunk:
    """The layout may be of earlier content: then the chunk is looked for, and has no ordinal."""
    if chunk.start is not None and text[chunk.start : chunk.end] == chunk.text:
        return FoundChunk(chunk.ordinal, chunk.start, chunk.end)
    at = text.find(chunk.text)
    return FoundChunk(None, at, at + len(chunk.text)) if at >= 0 else FoundChunk(None, None, None)


def _ordered(legs: Mapping[str, Leg], mode: Mode) -> list[Fused]:
    """One leg alone keeps its scores; several are fused by rank."""
    if mode == "hybrid":
        return fuse({name: [c.key for c in leg.candidates] for name, leg in legs.items()})
    ((name, leg),) = legs.items()
    return [Fused(c.key, c.score, {name: rank}) for rank, c in enumerate(leg.candidates, 1)]


def _semantic(searchable: Searchable, mode: Mode, legs: Mapping[str, Leg]) -> Semantic:
    if mode == "lexical":
        return "off"
    return "ok" if "dense" in legs else "unavailable"


def _notes(
    searchable: Searchable, mode: Mode, legs: Mapping[str, Leg], failures: Mapping[str, InstepError]
) -> list[str]:
    notes = [f"the {name} leg did not answer: {error}" for name, error in failures.items()]
    if mode == "hybrid" and searchable.dense is None:
        notes.append("no embedding model is set: keyword results alone")
    return notes + [leg.note for leg in legs.values() if leg.note]
