"""A search as the app answers it: the source's workshop, the budget over all of it, coverage.

What a process knows of a source may be old by the time it is asked: a statement that meets a table that is gone is
repeated once with what stands in the database now.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from instep.database.outages import is_schema
from instep.engine import declared, keys, status
from instep.errors import Configuration, Outage, Refused, Unknown
from instep.search.search import Request, Searchable, search

if TYPE_CHECKING:
    from instep.app import Instep
    from instep.search.answers import Answer
    from instep.search.walk import Walked


async def ask(
    app: Instep, name: str, request: Request, *, semantic: bool = True, coverage: bool = True
) -> Answer:
    """Search a source. `semantic`: false where no model is there to ask; `coverage`: say which share of the rows is
    embedded. Raises what `search` raises, and Refused for a source that has no search."""
    try:
        return await _ask(app, name, request, semantic, coverage)
    except (psycopg.Error, Unknown) as error:
        if isinstance(error, psycopg.Error) and not is_schema(error):
            raise
        await app.forget(name)
        return await _ask(app, name, request, semantic, coverage)


async def _ask(app: Instep, name: str, request: Request, semantic: bool, coverage: bool) -> Answer:
    began = app.clock.monotonic()
    try:
        async with asyncio.timeout(request.budget):
            searchable = await _searchable(app, name, semantic, request)
    except TimeoutError:
        raise Outage(f"{name} was not ready to be searched within {request.budget:g} s") from None
    if request.budget is not None:
        request = replace(request, budget=max(0.0, request.budget - (app.clock.monotonic() - began)))
    answer = await search(searchable, app.database.connection, request, app.clock)
    leg = searchable.lexical if request.mode == "lexical" else searchable.dense
    if leg is None or not coverage:
        return answer
    async with app.database.connection() as conn:
        return replace(answer, coverage=await status.share(conn, leg.declaration, leg.target))


async def walk(app: Instep, name: str, request: Request, after: str | None) -> tuple[Walked, str | None]:
    """All rows that hold the words, in the order of keys, after a key as people write it; with the key after which the
    next page begins."""
    from instep.search.walk import walk as walk_on

    async with app.database.connection() as conn:
        source = await declared.read_source(conn, name)
    place = keys.parse_key(source, after) if after is not None else None
    try:
        async with asyncio.timeout(request.budget):
            searchable = await _searchable(app, name, True, request)
            walked = await walk_on(searchable, app.database.connection, request, place)
    except TimeoutError:
        raise Outage(f"the page was not there within {request.budget:g} s") from None
    return walked, keys.format_key(walked.following) if walked.following else None


async def _searchable(app: Instep, name: str, semantic: bool, request: Request) -> Searchable:
    workshop = await app.workshop(name)
    if workshop.searchable is None:
        raise Refused(f"{name} cannot be searched: nothing of it is indexed")
    searchable = await workshop.searchable()
    if semantic:
        return searchable
    if request.mode == "dense":
        raise Configuration(
            "no model server is set for queries",
            setting="INSTEP_EMBED_URL",
            hint="search by words: mode lexical",
        )
    return replace(searchable, dense=None)
