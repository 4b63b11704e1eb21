"""The entries of an outbox, page by page, in the order of their keys: reads alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from instep.database.statements import Statements
from instep.engine.declaration import Columns, Declaration, Key, fragments
from instep.engine.ports import Conn

State = Literal["waiting", "leased", "parked", "dead", "discarded"]
Place = tuple[Key, str]
"""Key and target: where a page ended."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: Key
    target: str
    state: str
    generation: int
    claims: int
    attempts: int
    enqueued_at: datetime
    error_kind: str | None
    last_error: str | None

    @property
    def place(self) -> Place:
        return self.key, self.target

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key[0] if len(self.key) == 1 else list(self.key),
            "target": self.target,
            "state": self.state,
            "generation": self.generation,
            "claims": self.claims,
            "attempts": self.attempts,
            "enqueued_at": self.enqueued_at.isoformat(),
            "error_kind": self.error_kind,
            "last_error": self.last_error,
        }


async def entries(
    conn: Conn,
    declaration: Declaration,
    *,
    state: State | None = None,
    after: Place | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[Entry]:
    """After a place, or from the beginning."""
    columns = Columns(declaration.source.key)
    sql = Statements("instep.engine", "entries.sql", **fragments(declaration))
    values: dict[str, Any] = {"state": state, "limit": limit, "offset": offset}
    if after is not None:
        values |= {**columns.one(after[0]), "target": after[1]}
    rows = await (await conn.execute(sql["after" if after else "first"], values)).fetchall()
    width = len(columns.names)
    return [Entry(tuple(row[:width]), *row[width:]) for row in rows]
