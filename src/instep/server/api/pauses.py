"""The pause switch: workers start no new wave, and finish the one in hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Path
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from instep.errors import Refused
from instep.web.guard import check_table, check_unlimited
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

routes = Routes("/api/v1/pauses", tag="pauses")

Name = Annotated[str, Path(max_length=100, description="a table (articles) or one of its derivations")]

PAUSE: dict[str, Any] = {
    "name": "articles.embed",
    "reason": "the model is changed",
    "since": "2026-07-01T12:00:00+00:00",
    "until": "2026-07-01T14:00:00+00:00",
}


class Wanted(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "the model is changed", "minutes": 120}]}
    )

    reason: str = Field(min_length=1, max_length=1_000, description="shown wherever the pause is shown")
    until: AwareDatetime | None = Field(None, description="when it ends by itself, with its time zone")
    minutes: float | None = Field(None, gt=0, le=525_600, description="or after how long")

    def end(self) -> datetime | timedelta | None:
        if self.until is not None and self.minutes is not None:
            raise Refused("until and minutes exclude each other", hint="leave one of them out")
        return timedelta(minutes=self.minutes) if self.minutes is not None else self.until


@routes.get("", role=Role.READER, summary="The pauses in force", example={"pauses": [PAUSE]})
async def list_pauses(app: App, caller: Who) -> dict[str, Any]:
    """`name` is null where everything is paused."""
    return {
        "pauses": [one.as_dict() for one in await app.paused() if not one.scope or caller.sees(one.scope)]
    }


@routes.post(
    "", role=Role.OPERATOR, status_code=201, summary="Pause everything", example={**PAUSE, "name": None}
)
async def pause_all(app: App, caller: Who, wanted: Wanted) -> dict[str, Any]:
    """Changes are still noticed, and wait."""
    check_unlimited(caller)
    return (await app.pause(reason=wanted.reason, until=wanted.end())).as_dict()


@routes.post(
    "/{name}", role=Role.OPERATOR, status_code=201, summary="Pause a table or a derivation", example=PAUSE
)
async def pause_one(app: App, caller: Who, name: Name, wanted: Wanted) -> dict[str, Any]:
    """A pause of the same name takes the place of one before."""
    check_table(caller, name)
    return (await app.pause(name, reason=wanted.reason, until=wanted.end())).as_dict()


@routes.delete("", role=Role.OPERATOR, summary="Lift every pause", example={"lifted": [PAUSE]})
async def resume_all(app: App, caller: Who) -> dict[str, Any]:
    check_unlimited(caller)
    return {"lifted": [one.as_dict() for one in await app.resume()]}


@routes.delete("/{name}", role=Role.OPERATOR, summary="Lift the pause of a name", example={"lifted": [PAUSE]})
async def resume_one(app: App, caller: Who, name: Name) -> dict[str, Any]:
    """Refused where a wider pause would go on holding it."""
    check_table(caller, name)
    return {"lifted": [one.as_dict() for one in await app.resume(name)]}
