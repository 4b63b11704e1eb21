"""Derivations: which there are, and how in step they are."""

from __future__ import annotations

from typing import Any

from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

routes = Routes("/api/v1/derivations", tag="derivations")


@routes.get("", role=Role.READER, summary="All derivations, with how in step they are")
async def list_derivations(app: App, caller: Who) -> dict[str, Any]:
    return {"derivations": [one.as_dict() for one in await app.status() if caller.sees(one.name)]}
