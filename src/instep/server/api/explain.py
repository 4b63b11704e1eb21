"""Why one row is as it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from instep.server.api import examples
from instep.web.guard import check_table
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

routes = Routes("/api/v1/explain", tag="explain")


@routes.get(
    "/{name}/{key:path}", role=Role.READER, summary="The whole story of one row", example=examples.EXPLAINED
)
async def explain(
    app: App,
    caller: Who,
    name: Annotated[str, Path(max_length=100, description="a derivation, or a table (its first derivation)")],
    key: Annotated[
        str, Path(max_length=10_000, description="a JSON array where the key has several columns")
    ],
) -> dict[str, Any]:
    """Whether it is eligible and why, what its outputs were made from, what waits, and what happens next."""
    check_table(caller, name)
    return (await app.explain(name, key)).as_dict()
