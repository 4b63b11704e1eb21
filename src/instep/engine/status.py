"""How in step a derivation is: waiting, leased, dead, oldest wait, coverage, the last run, and one word for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Declaration, Target, fragments
from instep.engine.pause import Pause
from instep.engine.ports import Conn

BEHIND_SECONDS = 900.0  # the oldest wait from which "catching up" is called "behind"
COVERAGE_MILLISECONDS = 2000  # a full count may take so long; beyond it coverage is left unsaid
ALIVE_SECONDS = 15.0  # since a run was last seen: beyond it the run has ended without saying so


@dataclass(frozen=True, slots=True)
class LastRun:
    outcome: str  # ok | failed | outage | configuration | interrupted | running | lost
    detail: str
    seconds_ago: float
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """`coverage` is a fraction of the eligible rows, None where it was too dear to count or cannot be counted."""

    name: str
    state: str  # in step | catching up | behind | outage | misconfigured | paused | never run
    waiting: int
    leased: int
    dead: int
    oldest_wait_seconds: float
    unabsorbed: int
    coverage: float | None
    target: str
    last_run: LastRun | None
    problem: str = ""  # of the table, which a person must mend before anything of it can be worked
    paused: Pause | None = None

    def as_dict(self) -> dict[str, Any]:
        run = self.last_run
        return {
            "name": self.name,
            "state": self.state,
            "waiting": self.waiting,
            "leased": self.leased,
            "dead": self.dead,
            "oldest_wait_seconds": round(self.oldest_wait_seconds, 3),
            "unabsorbed": self.unabsorbed,
            "coverage": None if self.coverage is None else round(self.coverage, 6),
            "target": self.target,
            "problem": self.problem or None,
            "paused": self.paused and self.paused.as_dict(),
            "last_run": run
            and {
                "outcome": run.outcome,
                "detail": run.detail,
                "seconds_ago": round(run.seconds_ago, 1),
                "counters": dict(run.counters),
            },
        }


UNABSORBED_LIMIT = 100_000


async def read(
    conn: Conn,
    declaration: Declaration,
    target: Target,
    problem: str = "",
    paused: Pause | None = None,
    *,
    coverage: float | Literal["count"] | None = "count",
) -> Status:
    """`target`: the one that is read; `problem`: what is wrong with the table, which is then not looked at; `paused`: by
    which switch; `coverage`: where the caller knows it. One round trip for each figure; none of them holds a lock."""
    sql = Statements("instep.engine", "status.sql", **fragments(declaration))
    waiting, leased, oldest = await _row(conn, sql["queue"], {})
    (dead,) = await _row(conn, sql["dead"], {})
    (unabsorbed,) = await _row(conn, sql["unabsorbed"], {"bit": declaration.bit, "limit": UNABSORBED_LIMIT})
    if coverage == "count":
        coverage = None if problem else await _coverage(conn, sql, target)
    run = await _last_run(conn, sql, declaration.name)
    state = "paused" if paused else _state(waiting + leased + unabsorbed, oldest, run)
    state = "misconfigured" if problem else state
    return Status(
        declaration.name,
        state,
        waiting,
        leased,
        dead,
        oldest,
        unabsorbed,
        coverage,
        target.name,
        run,
        problem,
        paused,
    )


async def coverage(conn: Conn, declaration: Declaration, target: Target) -> float | None:
    """Counted over all rows, or None where that takes too long."""
    return await _coverage(conn, Statements("instep.engine", "status.sql", **fragments(declaration)), target)


async def share(conn: Conn, declaration: Declaration, target: Target) -> float | None:
    """About which fraction of the rows has its output of `target`; None where nobody has an idea of the table's size.
    For searches: no row is counted but those that wait."""
    sql = Statements("instep.engine", "status.sql", **fragments(declaration))
    values = {"target": target.name, "limit": UNABSORBED_LIMIT, "relation": declaration.source.oid}
    waiting, rows = await _row(conn, sql["share"], values)
    if not waiting:
        return 1.0
    return None if rows <= 0 else max(0.0, 1.0 - waiting / max(rows, waiting))


def _state(waiting: int, oldest: float, run: LastRun | None) -> str:
    if run is None:
        return "never run"
    if waiting and run.outcome == "outage":
        return "outage"
    if run.outcome == "configuration":
        return "misconfigured"
    if not waiting:
        return "in step"
    return "behind" if oldest > BEHIND_SECONDS and run.outcome != "running" else "catching up"


async def _coverage(conn: Conn, sql: Statements, target: Target) -> float | None:
    try:
        async with transaction(conn, f"statement_timeout = {COVERAGE_MILLISECONDS}"):
            stamped, eligible = await _row(conn, sql["coverage"], {"target": target.name})
    except (psycopg.errors.QueryCanceled, psycopg.DataError, psycopg.errors.DataCorrupted):
        return None  # too dear, or a row on which the condition fails: that row has a dead letter
    return min(1.0, stamped / eligible) if eligible else 1.0


async def _last_run(conn: Conn, sql: Statements, name: str) -> LastRun | None:
    row = await (await conn.execute(sql["last_run"], {"derivation": name})).fetchone()
    if row is None:
        return None
    outcome = row[3] or ("running" if row[6] < ALIVE_SECONDS else "lost")
    return LastRun(outcome, row[4] or "", row[6], row[5])


async def _row(conn: Conn, statement: bytes, values: dict[str, Any]) -> tuple[Any, ...]:
    row = await (await conn.execute(statement, values)).fetchone()
    assert row is not None, "an aggregate without GROUP BY gives one row"
    return row
