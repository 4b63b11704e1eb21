"""Derivations: which there are, how in step they are and were, what a run would take, and running one now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from instep.engine import declared, entries, keys, runs
from instep.engine.declaration import Declaration
from instep.engine.entries import State
from instep.engine.ports import Conn
from instep.errors import Refused
from instep.server.api import examples
from instep.server.state import House
from instep.upkeep import sampling
from instep.web.guard import check_table
from instep.web.paging import Wanted, paged
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

routes = Routes("/api/v1/derivations", tag="derivations")

Name = Annotated[str, Path(max_length=100, description="a derivation, as articles.embed")]
POINTS = 240


@routes.get(
    "",
    role=Role.READER,
    summary="All derivations, with how in step they are",
    example={"derivations": [examples.STATUS]},
)
async def list_derivations(house: House, caller: Who) -> dict[str, Any]:
    """What waits was counted at `as_of`; a queue that is short is counted now."""
    figures = await house.keeper.figures()
    return {"derivations": [one for name, one in sorted(figures.items()) if caller.sees(name)]}


@routes.get("/{name}", role=Role.READER, summary="How in step one is", example=examples.STATUS)
async def show_derivation(
    app: App,
    house: House,
    caller: Who,
    name: Name,
    fresh: Annotated[bool, Query(description="count now, coverage too: seconds on a large table")] = False,
) -> dict[str, Any]:
    check_table(caller, name)
    async with app.database.connection() as conn:
        await declared.read_declaration(conn, name)
    known = None if fresh else (await house.keeper.figures()).get(name)
    if known is not None:
        return known
    status = (await app.status([name]))[0]
    return {**status.as_dict(), "depth": sampling.depth(status), "as_of": app.clock.now().isoformat()}


@routes.get(
    "/{name}/plan",
    role=Role.READER,
    summary="What is still to be made, and what that takes",
    example={"name": "articles.embed", "derivations": [examples.STATUS], "rows": 63000, "chunks": 81000},
)
async def plan(app: App, caller: Who, name: Name) -> dict[str, Any]:
    check_table(caller, name)
    return await app.plan(name)


@routes.get(
    "/{name}/runs",
    role=Role.READER,
    summary="Its runs, the newest first",
    example={"runs": [examples.RUN], "started_here": None, "next_cursor": None},
)
async def list_runs(app: App, house: House, caller: Who, name: Name, page: Wanted) -> dict[str, Any]:
    check_table(caller, name)
    place = page.place()
    if place is not None and not (len(place) == 1 and isinstance(place[0], int)):
        raise Refused("this is no cursor of this list", hint="take next_cursor as the page before gave it")
    async with app.database.connection() as conn:
        await declared.read_declaration(conn, name)
        found = await runs.runs(
            conn, name, before=place[0] if place else None, limit=page.limit + 1, offset=page.offset
        )
    shown, following = paged(page, found, runs.Run.as_dict, lambda run: [run.id])
    started = house.runs.last(name)
    return {"runs": shown, "started_here": started and started.as_dict(), "next_cursor": following}


@routes.post(
    "/{name}/run", role=Role.OPERATOR, status_code=202, summary="Run it now", example=examples.STARTED
)
async def run_now(app: App, house: House, caller: Who, name: Name) -> dict[str, Any]:
    """In a process of its own, beside whatever workers there are. Its progress is in the events and in its runs."""
    check_table(caller, name)
    async with app.database.connection() as conn:
        await declared.read_declaration(conn, name)
    return (await house.runs.start(name)).as_dict()


@routes.get(
    "/{name}/series",
    role=Role.READER,
    summary="How much waited and was worked, over time",
    example={"name": "articles.embed", "points": [examples.POINT]},
)
async def series(
    app: App,
    caller: Who,
    name: Name,
    hours: Annotated[float, Query(gt=0, le=2160, description="how far back")] = 2,
    points: Annotated[int, Query(ge=1, le=2000, description="about how many points, at most")] = POINTS,
) -> dict[str, Any]:
    """`depth` is the most that waited in a span, `worked` the sum of what was done in it."""
    check_table(caller, name)
    async with app.database.connection() as conn:
        await declared.read_declaration(conn, name)
        return {"name": name, "points": await sampling.series(conn, name, round(hours * 3600), points)}


@routes.get(
    "/{name}/entries",
    role=Role.READER,
    summary="What is in its queue, in the order of keys",
    example={"entries": [examples.ENTRY], "next_cursor": None},
)
async def list_entries(
    app: App,
    caller: Who,
    name: Name,
    page: Wanted,
    state: Annotated[State | None, Query(description="only entries that are so")] = None,
) -> dict[str, Any]:
    check_table(caller, name)
    async with app.database.connection() as conn:
        declaration = await declared.read_declaration(conn, name)
        after = _entry_place(declaration, page.place())
        found = await entries.entries(
            conn, declaration, state=state, after=after, limit=page.limit + 1, offset=page.offset
        )
    shown, following = paged(
        page, found, entries.Entry.as_dict, lambda one: [keys.format_key(one.key), one.target]
    )
    return {"entries": shown, "next_cursor": following}


async def declarations_of(conn: Conn, name: str) -> list[Declaration]:
    """Of a source or of one derivation. Raises Unknown."""
    if "." in name:
        return [await declared.read_declaration(conn, name)]
    return await declared.read_declarations(conn, await declared.read_source(conn, name))


def _entry_place(declaration: Declaration, place: list[Any] | None) -> entries.Place | None:
    if place is None:
        return None
    if len(place) != 2 or not all(isinstance(part, str) for part in place):
        raise Refused("this is no cursor of this list", hint="take next_cursor as the page before gave it")
    return keys.parse_key(declaration.source, place[0]), place[1]
