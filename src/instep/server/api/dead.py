"""Dead letters: what is no longer retried, and why; try it again, or set it aside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from instep.engine import declared, keys
from instep.engine.dead import DeadLetters, Letter
from instep.engine.declaration import Declaration, Key
from instep.errors import Refused
from instep.server.api import examples
from instep.web.guard import check_table
from instep.web.paging import Wanted, paged
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

EXCERPT = 400  # characters of a row's text that are shown

routes = Routes("/api/v1/dead", tag="dead letters")

Name = Annotated[str, Path(max_length=100, description="a table, or a derivation of it")]


class Which(BaseModel):
    """One row's letters, a kind's, or all: exactly one of them is said."""

    model_config = ConfigDict(extra="forbid")

    key: str | None = Field(
        None, max_length=10_000, description="of a row; a JSON array where it has several columns"
    )
    kind: str | None = Field(None, max_length=200)
    all: bool = False

    def check(self) -> None:
        if [self.key is not None, self.kind is not None, self.all].count(True) != 1:
            raise Refused(
                "say which letters: a key, a kind, or all", hint='for example {"kind": "input refused"}'
            )


class Replay(Which):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"key": "4711"}, {"kind": "input refused"}, {"all": True}]},
    )


class Discard(Which):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"key": "4711", "reason": "empty on purpose"}]}
    )

    reason: str = Field(min_length=1, max_length=1_000, description="shown wherever the letter is shown")


@routes.get(
    "",
    role=Role.READER,
    summary="Dead letters by kind, each with an example",
    example={"kinds": [examples.KIND]},
)
async def list_kinds(app: App, caller: Who) -> dict[str, Any]:
    return {
        "kinds": [
            {
                "name": one.derivation,
                "kind": one.kind,
                "count": one.count,
                "oldest": one.oldest.isoformat(),
                "example": {"key": _plain(one.example_key), "error": one.example_error},
            }
            for one in await app.dead_kinds()
            if caller.sees(one.derivation)
        ]
    }


@routes.get(
    "/{name}",
    role=Role.READER,
    summary="The letters of one derivation, the newest first",
    example={"letters": [examples.LETTER], "next_cursor": None},
)
async def list_letters(
    app: App,
    caller: Who,
    name: Annotated[str, Path(max_length=100, description="a derivation, as articles.embed")],
    page: Wanted,
    kind: Annotated[str | None, Query(max_length=200, description="only those of this kind")] = None,
) -> dict[str, Any]:
    check_table(caller, name)
    async with app.database.connection() as conn:
        declaration = await declared.read_declaration(conn, name)
        found = await DeadLetters(declaration).letters(
            conn, kind, page.limit + 1, offset=page.offset, after=_place(declaration, page.place())
        )
    shown, following = paged(
        page,
        found,
        lambda one: letter(name, one),
        lambda one: [one.failed_at.isoformat(), keys.format_key(one.key), one.target],
    )
    return {"letters": shown, "next_cursor": following}


@routes.get(
    "/{name}/{key:path}",
    role=Role.READER,
    summary="One row's letters, with what it says now",
    example={"letters": [examples.LETTER], "text": "How do I rotate a key?"},
)
async def show_letters(
    app: App, caller: Who, name: Name, key: Annotated[str, Path(max_length=10_000)]
) -> dict[str, Any]:
    """Discarded ones too. `text` is the beginning of the row's text as it is now; empty where the row is gone."""
    check_table(caller, name)
    letters, text = await app.dead_show(name, key)
    return {
        "letters": [letter(derivation, one) for derivation, one in letters],
        "text": text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…",
    }


@routes.post("/{name}/replay", role=Role.MEMBER, summary="Try letters again", example={"replayed": 1})
async def replay(app: App, caller: Who, name: Name, which: Replay) -> dict[str, Any]:
    """They wait again, with all their attempts. A discarded one is tried again by its key."""
    check_table(caller, name)
    which.check()
    return {"replayed": await app.dead_replay(name, which.key, which.kind)}


@routes.post("/{name}/discard", role=Role.OPERATOR, summary="Set letters aside", example={"discarded": 1})
async def discard(app: App, caller: Who, name: Name, which: Discard) -> dict[str, Any]:
    """Out of all counts, with the reason, until the row's content changes."""
    check_table(caller, name)
    which.check()
    return {"discarded": await app.dead_discard(which.reason, name, which.key, which.kind)}


def letter(derivation: str, one: Letter) -> dict[str, Any]:
    return {
        "name": derivation,
        "key": _plain(one.key),
        "target": one.target,
        "kind": one.kind,
        "error": one.error,
        "attempts": one.attempts,
        "failed_at": one.failed_at.isoformat(),
        "discarded_at": one.discarded_at and one.discarded_at.isoformat(),
        "discard_reason": one.discard_reason,
    }


def _plain(key: Key) -> Any:
    return key[0] if len(key) == 1 else list(key)


def _place(declaration: Declaration, place: list[Any] | None) -> tuple[datetime, Key, str] | None:
    if place is None:
        return None
    try:
        at, key, target = place
        return datetime.fromisoformat(at), keys.parse_key(declaration.source, key), str(target)
    except (ValueError, TypeError) as error:
        raise Refused(
            "this is no cursor of this list", hint="take next_cursor as the page before gave it"
        ) from error
