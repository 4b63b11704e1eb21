"""Samples: how in step every derivation is, counted each quarter of a minute by whichever server is at hand, and kept.

Counting a million entries takes 30 to 50 ms, so no request does it: a request reads what was counted last, and says as
of when. Invariants (tests/postgres/test_server_samples.py):
- several processes that sample at once make one sample;
- the work of a run stands in exactly one point, whoever samples, also where the run died;
- points are thinned into longer spans, so their number is bounded, and the sum of their work stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from instep.clock import SYSTEM, Clock
from instep.database.outages import is_schema
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine import declared, install, pause, status
from instep.engine.declaration import Declaration, Target
from instep.engine.ports import Conn
from instep.engine.status import Status
from instep.errors import Unknown

EVERY_SECONDS = 15
COVERAGE_SECONDS = 300.0  # how old a full count may be where it is dear
CHEAP_SECONDS = 0.1  # a full count that takes no longer is made for each sample

# span in seconds → how long points of it are kept before they are merged into the next, or dropped
SPANS: Mapping[int, int] = {EVERY_SECONDS: 2 * 3600, 300: 2 * 86_400, 3600: 90 * 86_400}
MOST_POINTS = sum(keep // span for span, keep in SPANS.items()) + 3 * 240
"""Of one derivation, some that are about to be thinned included."""

_SQL = Statements("instep.upkeep", "sampling.sql")


@dataclass(frozen=True, slots=True)
class Sample:
    """`status` as `Status.as_dict` gives it, with `depth`: all that waits, is worked or is not absorbed yet."""

    name: str
    at: datetime
    status: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {**self.status, "as_of": self.at.isoformat()}


async def sample(conn: Conn, *, every: float = EVERY_SECONDS, clock: Clock = SYSTEM) -> bool:
    """Count everything now, unless that was begun less than about `every` seconds ago: then False."""
    begun = await (await conn.execute(_SQL["begin"], {"every": every * 0.9})).fetchone()
    if begun is None:
        return False
    counted: list[Status] = []
    for source in await declared.source_names(conn):
        try:
            counted += await _source(conn, source, clock)
        except (psycopg.Error, Unknown) as error:
            if isinstance(error, psycopg.Error) and not is_schema(error):
                raise
            # It was removed while we looked: the next sample does not know it.
    await keep(conn, counted)
    return True


async def keep(conn: Conn, counted: Sequence[Status], at: datetime | None = None) -> None:
    """Write one sample and its points, and thin the old ones. `at`: for tests that simulate days."""
    async with transaction(conn):
        worked: dict[str, int] = dict(await (await conn.execute(_SQL["account"], {})).fetchall())
        for one in counted:
            values = {
                "derivation": one.name,
                "at": at,
                "status": Jsonb(_shown(one)),
                "span": EVERY_SECONDS,
                "depth": depth(one),
                "worked": worked.pop(one.name, 0),
                "dead": one.dead,
                "oldest_wait": one.oldest_wait_seconds,
            }
            await conn.execute(_SQL["keep"], values)
            await conn.execute(_SQL["point"], values)
        for derivation, more in worked.items():  # it could not be counted now: its work is not lost
            await conn.execute(
                _SQL["point"],
                {"derivation": derivation, "at": at, "span": EVERY_SECONDS, "depth": 0, "worked": more, "dead": 0, "oldest_wait": 0.0},
            )  # fmt: skip
        spans = list(SPANS)
        for span, longer in pairwise(spans):
            await conn.execute(_SQL["thin"], {"span": span, "longer": longer, "keep": SPANS[span], "at": at})
        await conn.execute(_SQL["drop"], {"span": spans[-1], "keep": SPANS[spans[-1]], "at": at})


def depth(one: Status) -> int:
    return one.waiting + one.leased + one.unabsorbed


async def samples(conn: Conn) -> list[Sample]:
    """The last sample of every derivation, by name."""
    rows = await (await conn.execute(_SQL["samples"], {})).fetchall()
    return [Sample(*row) for row in rows]


async def coverage(conn: Conn, derivation: str) -> float | None:
    """The share of the rows that have their output, as it was counted last."""
    row = await (await conn.execute(_SQL["coverage"], {"derivation": derivation})).fetchone()
    return row[0] if row else None


async def series(conn: Conn, derivation: str, seconds: int, points: int) -> list[dict[str, Any]]:
    """At most about `points` points over the last `seconds`, the oldest first; their work sums to what was worked."""
    width = max(EVERY_SECONDS, -(-seconds // points))
    rows = await (
        await conn.execute(_SQL["series"], {"derivation": derivation, "seconds": seconds, "width": width})
    ).fetchall()
    return [
        {"at": at.isoformat(), "seconds": width, "depth": deep, "worked": worked, "dead": dead, "oldest_wait_seconds": oldest}
        for at, deep, worked, dead, oldest in rows
    ]  # fmt: skip


def _shown(one: Status) -> dict[str, Any]:
    """Without what the page says better from the time itself."""
    return {**one.as_dict(), "depth": depth(one)}


async def _source(conn: Conn, source: str, clock: Clock) -> list[Status]:
    declarations = await declared.read_declarations(conn, await declared.read_source(conn, source))
    problems = await install.problems(conn, source)
    problem = f"{problems[0].what}: {problems[0].mend}" if problems else ""
    pauses = await pause.standing(conn)
    found = []
    for declaration in declarations:
        targets = await declared.read_targets(conn, declaration.name)
        reading = next((target for target in targets if target.state == "reading"), None)
        if reading is None:
            continue
        share = None if problem else await _coverage(conn, declaration, reading, clock)
        held = pause.covering(pauses, declaration.name)
        found.append(await status.read(conn, declaration, reading, problem, held, coverage=share))
    return found


async def _coverage(conn: Conn, declaration: Declaration, target: Target, clock: Clock) -> float | None:
    """Counted over all rows where that is cheap or was long ago, else by what waits."""
    row = await (await conn.execute(_SQL["counted"], {"derivation": declaration.name})).fetchone()
    if row is not None and row[0] is not None and row[0] < COVERAGE_SECONDS and row[1] > CHEAP_SECONDS:
        return await status.share(conn, declaration, target)
    began = clock.monotonic()
    counted = await status.coverage(conn, declaration, target)
    took = clock.monotonic() - began
    await conn.execute(
        _SQL["counted_now"], {"derivation": declaration.name, "coverage": counted, "seconds": took}
    )
    return await status.share(conn, declaration, target) if counted is None else counted
