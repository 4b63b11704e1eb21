"""Whether the server lives, how its queues stand, what it offers, and metrics to scrape."""

from __future__ import annotations

from typing import Any

import psycopg
from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from psycopg_pool import PoolTimeout
from starlette.responses import Response

from instep.errors import Unknown
from instep.server.api import examples
from instep.server.state import House
from instep.upkeep import queues
from instep.web.roles import Role
from instep.web.routing import Answer, App, Routes, Who

routes = Routes(tag="health")


@routes.get("/health", role=Role.PUBLIC, summary="Whether the process lives", example={"status": "ok"})
async def live() -> Answer:
    return Answer({"status": "ok"})


@routes.get(
    "/api/v1/health", role=Role.READER, summary="Whether all that it needs is there", example=examples.HEALTH
)
async def healthy(app: App, house: House, caller: Who) -> Answer:
    """Not the process alone: the database, the queues, the model. 503 where something that is needed does not answer.

    `failed_24h`: dead letters of the last 24 hours; `oldest_running_seconds`: since the run that was silent for longest
    was seen; beyond `stuck_after_seconds` its work is taken over by others."""
    try:
        async with app.database.connection() as conn:
            found = [one for one in await queues.queues(conn) if caller.sees(one.name)]
    except (psycopg.OperationalError, PoolTimeout):
        return Answer({"status": "failed", "database": "does not answer", "queues": []}, 503)
    stuck = house.settings.lease_seconds
    bad = {"outage", "misconfigured", "behind"}
    return Answer(
        {
            "status": "degraded" if any(one.state in bad for one in found) else "ok",
            "database": "ok",
            "semantic": "configured" if house.semantic else "unavailable",
            "as_of": min((one.as_of.isoformat() for one in found), default=None),
            "queues": [{**one.as_dict(), "stuck_after_seconds": stuck} for one in found],
        }
    )


@routes.get(
    "/metrics",
    role=Role.READER,
    summary="For Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "the text format",
            "content": {"text/plain": {"example": 'instep_waiting{derivation="articles.embed"} 1200.0'}},
        }
    },
)
async def metrics(app: App, caller: Who) -> Response:
    """As sampled last: see `instep_sampled_timestamp_seconds`."""
    async with app.database.connection() as conn:
        found = [one for one in await queues.queues(conn) if caller.sees(one.name)]
    return Response(queues.exposition(found), media_type=CONTENT_TYPE_LATEST)


@routes.get("/api/v1/openapi.json", role=Role.PUBLIC, include_in_schema=False)
async def openapi(request: Request) -> Answer:
    return Answer(request.app.openapi())


@routes.get("/assets/{part}/{name}", role=Role.PUBLIC, include_in_schema=False)
async def asset(request: Request, part: str, name: str) -> Response:
    """Of the pages: only what was found when the application was made, whatever the path says."""
    found: Any = request.app.state.house.assets.get((part, name))
    if found is None:
        raise Unknown("there is no such asset")
    headers = {"etag": found.etag, "cache-control": "public, max-age=31536000, immutable"}
    return Response(found.content, headers=headers, media_type=found.type)
