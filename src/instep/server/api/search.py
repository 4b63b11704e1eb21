"""Search of one table, with a budget: a leg that is late is left out, and the answer says so."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import Path, Query
from starlette.responses import Response

from instep.app import Instep
from instep.errors import Refused
from instep.search.search import Request
from instep.server.api import examples
from instep.server.state import House
from instep.web.guard import check_table
from instep.web.paging import MOST, Page, window
from instep.web.paging import cursor as make_cursor
from instep.web.problems import Problem
from instep.web.roles import Role
from instep.web.routing import Answer, App, Routes, Who, etag

routes = Routes("/api/v1/search", tag="search")


@routes.get("/{name}", role=Role.READER, summary="Rows by meaning and by words", example=examples.SEARCH)
async def search(
    app: App,
    house: House,
    caller: Who,
    name: Annotated[str, Path(max_length=100, description="a table")],
    q: Annotated[str, Query(max_length=10_000, description="what to look for", examples=["rotate a key"])],
    mode: Annotated[
        Literal["hybrid", "dense", "lexical"],
        Query(description="by meaning (dense), by words (lexical), or both (hybrid)"),
    ] = "hybrid",
    where: Annotated[
        str,
        Query(max_length=2_000, description="a condition on the filter columns", examples=["price < 20"]),
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MOST)] = 10,
    offset: Annotated[int, Query(ge=0, description="with limit at most 10,000")] = 0,
    facets: Annotated[bool, Query(description="count the values of the filter columns")] = False,
    order: Annotated[
        Literal["relevance", "key"],
        Query(description="key: all rows that hold the words, with a next_cursor as long as there are more"),
    ] = "relevance",
    cursor: Annotated[
        str | None, Query(max_length=10_000, description="next_cursor of the page before, with order=key")
    ] = None,
) -> Response:
    """`legs` are those that answered; `semantic` is `ok`, `unavailable` (keyword results alone, `notes` say why) or
    `off` (not asked for). Rows that are gone or not eligible any more never appear, however much work waits."""
    check_table(caller, name)
    _window(limit, offset)
    request = Request(q, mode, where, limit, offset, facets, budget=house.settings.search_budget_seconds)
    if order == "key" or cursor is not None:
        return await _in_order(app, name, request, offset, cursor)
    found = await app.ask(name, request, semantic=house.semantic, coverage=False)
    answer: dict[str, Any] = {**found.as_dict(), "coverage": house.keeper.coverage(name), "next_cursor": None}
    tag = etag(orjson.dumps({**answer, "seconds": 0}))  # the same answer, however long it took
    return Answer(answer, headers={"etag": tag})


async def _in_order(app: Instep, name: str, request: Request, offset: int, cursor: str | None) -> Response:
    if request.mode != "lexical" or offset or request.facets:
        raise Refused(
            "the order of keys is for a search by words alone, without offset and facets",
            hint="mode=lexical&order=key, then from page to page by next_cursor",
        )
    place = Page(request.limit, 0, cursor).place()
    if place is not None and not (len(place) == 1 and isinstance(place[0], str)):
        raise Refused("this is no cursor of a search", hint="take next_cursor as the page before gave it")
    walked, following = await app.walk(name, request, place[0] if place else None)
    return Answer(
        {
            "results": [one.as_dict() for one in walked.results],
            "semantic": "off",
            "legs": ["lexical"],
            "next_cursor": make_cursor([following]) if following is not None else None,
        }
    )


def _window(limit: int, offset: int) -> None:
    try:
        window(limit, offset)
    except Problem as problem:
        problem.hint = "all rows that hold the words, from page to page by cursor: mode=lexical&order=key"
        raise
