"""Server-sent events: figures as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import Query
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from instep.server.state import House
from instep.web.guard import check_table
from instep.web.problems import Problem
from instep.web.roles import Caller, Role
from instep.web.routing import STREAMS, Routes, Who

RETRY_MILLISECONDS = 1_000  # a browser whose stream broke comes again after so long
PING_SECONDS = 15
SEND_SECONDS = 30.0  # a listener that takes nothing for so long is let go
MOST_LISTENERS = 200

routes = Routes("/api/v1/events", tag="events")


@routes.get(
    "",
    role=Role.READER,
    summary="Figures as they change (server-sent events)",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "`status` events: all derivations first, then those that changed",
            "content": {
                STREAMS: {"example": 'event: status\ndata: {"derivations": [{"name": "articles.embed"}]}\n\n'}
            },
        }
    },
)
async def events(
    house: House,
    caller: Who,
    name: Annotated[str, Query(max_length=100, description="only of this table or derivation")] = "",
) -> Response:
    """Each event `status` holds `derivations`, as the list of derivations gives them."""
    if name:
        check_table(caller, name)
    if house.keeper.listeners >= MOST_LISTENERS:
        raise Problem("limit", "too many listen already", None, {"retry-after": "30"})
    return EventSourceResponse(
        _events(house, caller, name),
        ping=PING_SECONDS,
        send_timeout=SEND_SECONDS,
        headers={"cache-control": "no-store"},
    )


async def _events(house: House, caller: Caller, name: str) -> AsyncIterator[ServerSentEvent]:
    async with house.keeper.listening() as queue:
        number = 0
        while True:
            figures = await queue.get()
            while True:  # what came meanwhile is told at once
                try:
                    figures = {**figures, **queue.get_nowait()}
                except asyncio.QueueEmpty:
                    break
            seen = [
                one
                for key, one in sorted(figures.items())
                if caller.sees(key) and (not name or name in (key, key.partition(".")[0]))
            ]
            if seen:
                number += 1
                yield ServerSentEvent(
                    orjson.dumps({"derivations": seen}).decode(),
                    event="status",
                    id=str(number),
                    retry=RETRY_MILLISECONDS,
                )
