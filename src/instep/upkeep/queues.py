"""The queues as they were sampled last, for health checks and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from instep.database.outages import is_schema
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine import declared
from instep.engine.declaration import fragments
from instep.engine.ports import Conn
from instep.errors import Unknown
from instep.upkeep import sampling

_SQL = Statements("instep.upkeep", "queues.sql")

# figure of a sample → what it says
GAUGES: Mapping[str, str] = {
    "waiting": "entries that wait",
    "leased": "entries that are worked",
    "unabsorbed": "changes that no run has taken up yet",
    "depth": "all that waits, is worked or is not taken up yet",
    "dead": "dead letters",
    "oldest_wait_seconds": "since when the oldest entry waits",
    "coverage": "share of the eligible rows that have their output",
    "worked_last_hour": "entities whose output was made or cleared in the last hour",
}


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    as_of: datetime
    figures: Mapping[str, Any]
    failed_24h: int
    silent_seconds: float | None  # since the run that was silent for longest was seen; None: nothing runs

    @property
    def state(self) -> str:
        return str(self.figures["state"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "pending": self.figures["waiting"] + self.figures["unabsorbed"],
            "running": self.figures["leased"],
            "failed_24h": self.failed_24h,
            "oldest_running_seconds": None if self.silent_seconds is None else round(self.silent_seconds, 1),
        }


async def queues(conn: Conn) -> list[Queue]:
    """All of them, by name."""
    silent: dict[str, float] = dict(await (await conn.execute(_SQL["silent"], {})).fetchall())
    found = []
    for one in await sampling.samples(conn):
        try:
            declaration = await declared.read_declaration(conn, one.name)
            sql = Statements("instep.upkeep", "queues.sql", **fragments(declaration))
            async with transaction(
                conn, "enable_seqscan = off"
            ):  # stale statistics make the whole queue look small
                row = await (await conn.execute(sql["failed"], {}, prepare=False)).fetchone()
        except (psycopg.Error, Unknown) as error:
            if isinstance(error, psycopg.Error) and not is_schema(error):
                raise
            continue  # it was removed while we looked
        found.append(Queue(one.name, one.at, one.status, row[0] if row else 0, silent.get(one.name)))
    return found


def exposition(found: Sequence[Queue]) -> bytes:
    """Prometheus' text format. Units are in the names."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"instep_{name}", text, ["derivation"], registry=registry)

    for name, text in GAUGES.items():
        figures = gauge(name, text)
        for one in found:
            if one.figures.get(name) is not None:
                figures.labels(one.name).set(one.figures[name])
    sampled = gauge("sampled_timestamp_seconds", "when this was counted")
    failed = gauge("failed_24h", "dead letters of the last 24 hours")
    states = Gauge("instep_state", "1 for the state it is in", ["derivation", "state"], registry=registry)
    for one in found:
        sampled.labels(one.name).set(one.as_of.timestamp())
        failed.labels(one.name).set(one.failed_24h)
        states.labels(one.name, one.state).set(1)
    return generate_latest(registry)
