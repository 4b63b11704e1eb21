"""Keys: made, listed and revoked by administrators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from instep.server.api import examples
from instep.web import keys
from instep.web.guard import check_unlimited
from instep.web.roles import Role
from instep.web.routing import App, Door, Routes, Who

routes = Routes("/api/v1/keys", tag="keys")


class Wanted(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"role": "reader", "tables": ["articles"], "name": "the shop"}]},
    )

    role: Literal["reader", "member", "operator", "administrator"]
    tables: list[str] = Field(default_factory=list, max_length=1_000, description="empty: all")
    name: str = Field("", max_length=200, description="whose it is")


@routes.get("", role=Role.ADMINISTRATOR, summary="All keys", example={"keys": [examples.KEY]})
async def list_keys(app: App, caller: Who) -> dict[str, Any]:
    """Revoked ones too; without what opens anything."""
    check_unlimited(caller)
    async with app.database.connection() as conn:
        return {"keys": [key.as_dict() for key in await keys.listed(conn)]}


@routes.post(
    "",
    role=Role.ADMINISTRATOR,
    status_code=201,
    summary="Make a key",
    example={**examples.KEY, "key": "instep_0f1e2d3c4b5a_…"},
)
async def create_key(app: App, caller: Who, wanted: Wanted) -> dict[str, Any]:
    """`key` is what its holder sends. It is in this answer alone: only its hash is kept."""
    check_unlimited(caller)
    async with app.database.connection() as conn:
        key, secret = await keys.create(conn, Role(wanted.role), wanted.tables, wanted.name)
    return {**key.as_dict(), "key": secret}


@routes.delete("/{id}", role=Role.ADMINISTRATOR, summary="Revoke a key", example=examples.KEY)
async def revoke_key(
    app: App, caller: Who, door: Door, id: Annotated[str, Path(max_length=100)]
) -> dict[str, Any]:
    """It opens nothing from now on. Again: no change."""
    check_unlimited(caller)
    async with app.database.connection() as conn:
        key = await keys.revoke(conn, id)
    door.forget()
    return key.as_dict()
