"""Whether the server lives, how its queues stand, what it offers, and metrics to scrape."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from instep.web.roles import Role
from instep.web.routing import Answer, Routes

routes = Routes(tag="health")


@routes.get("/health", role=Role.PUBLIC, summary="Whether the process lives")
async def live() -> Answer:
    return Answer({"status": "ok"})


@routes.get("/api/v1/openapi.json", role=Role.PUBLIC, include_in_schema=False)
async def openapi(request: Request) -> Answer:
    return Answer(request.app.openapi())


@routes.get("/assets/{part}/{name}", role=Role.PUBLIC, include_in_schema=False)
async def asset(request: Request, part: str, name: str) -> Response:
    """Of the pages: only what was found when the application was made, whatever the path says."""
    from instep.errors import Unknown

    found: Any = request.app.state.house.assets.get((part, name))
    if found is None:
        raise Unknown("there is no such asset")
    headers = {
        "etag": found.etag,
        "cache-control": "public, max-age=31536000, immutable",
        "vary": "accept-encoding",
    }
    return Response(found.content, headers=headers, media_type=found.type)
