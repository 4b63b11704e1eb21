"""The runs of a derivation, the newest first: reads alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from instep.database.statements import Statements
from instep.engine.ports import Conn
from instep.engine.status import ALIVE_SECONDS

_SQL = Statements("instep.engine", "runs.sql")


@dataclass(frozen=True, slots=True)
class Run:
    """`outcome`: ok, failed, outage, configuration, interrupted, running, or lost (it ended without saying so)."""

    id: int
    started_at: datetime
    finished_at: datetime | None
    seconds: float
    outcome: str
    detail: str
    counters: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at and self.finished_at.isoformat(),
            "seconds": round(self.seconds, 3),
            "outcome": self.outcome,
            "detail": self.detail,
            "counters": dict(self.counters),
        }


async def runs(
    conn: Conn, derivation: str, *, before: int | None = None, limit: int = 20, offset: int = 0
) -> list[Run]:
    """`before`: the id of the last one of the page that came before."""
    values = {
        "derivation": derivation,
        "before": before,
        "limit": limit,
        "offset": offset,
        "alive": ALIVE_SECONDS,
    }
    return [Run(*row) for row in await (await conn.execute(_SQL["runs"], values)).fetchall()]
