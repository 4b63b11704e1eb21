"""Search of one table, with a budget: a leg that is late is left out, and the answer says so."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import Path, Query
from starlette.responses import Response

from instep.search.search import Request
from instep.server.api import examples
from instep.server.state import House
from instep.web.guard import check_table
from instep.web.paging import MOST, window
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
) -> Response:
    """`legs` are those that answered; `semantic` is `ok`, `unavailable` (keyword results alone, `notes` say why) or
    `off` (not asked for). Rows that are gone or not eligible any more never appear, however much work waits."""
    check_table(caller, name)
    window(limit, offset)
    request = Request(q, mode, where, limit, offset, facets, budget=house.settings.search_budget_seconds)
    found = await app.ask(name, request, semantic=house.semantic, coverage=False)
    answer: dict[str, Any] = {**found.as_dict(), "coverage": house.keeper.coverage(name)}
    tag = etag(orjson.dumps({**answer, "seconds": 0}))  # the same answer, however long it took
    return Answer(answer, headers={"etag": tag})
