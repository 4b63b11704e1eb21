"""The pause switch: workers start no new wave, and finish the one in hand; finding work goes on.

The switch fails open: what cannot be read stops nobody, and is said by an event. Invariants, and the tests that guard
them (tests/postgres/test_pause.py):
- a paused worker claims nothing, one that stays goes on when resumed: test_a_worker_that_stays_waits_and_goes_on;
- the wave in hand is finished: test_the_wave_in_hand_is_finished;
- a switch that cannot be read stops nobody: test_a_switch_that_cannot_be_read_stops_nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from instep.database.statements import Statements
from instep.engine.failures import describe
from instep.engine.ports import Conn, Observer
from instep.engine.stopping import Stop
from instep.errors import Refused

EVERYTHING = ""

_SQL = Statements("instep.engine", "pause.sql")


@dataclass(frozen=True, slots=True)
class Pause:
    scope: str  # "" for everything, a source ("articles") or a derivation ("articles.embed")
    reason: str
    since: datetime
    until: datetime | None

    def covers(self, derivation: str) -> bool:
        return self.scope in (EVERYTHING, derivation, derivation.partition(".")[0])

    def __str__(self) -> str:
        return f"{self.reason} (until {self.until:%Y-%m-%d %H:%M:%S %Z})" if self.until else self.reason

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.scope or None,
            "reason": self.reason,
            "since": self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
        }


async def pause(conn: Conn, scope: str, reason: str, until: datetime | timedelta | None = None) -> Pause:
    """Pause a scope, or give a paused one another reason and end. Raises Refused for an end that has passed,
    and for a blank reason."""
    if not reason.strip():
        raise Refused("the reason of a pause is blank", hint="say why: whoever finds it wants to know")
    length = until.total_seconds() if isinstance(until, timedelta) else None
    moment = until if isinstance(until, datetime) else None
    async with conn.transaction():
        values = {"scope": scope, "reason": reason, "until": moment, "seconds": length}
        row = await (await conn.execute(_SQL["pause"], values)).fetchone()
        assert row is not None
        *made, passed = row
        if passed:
            raise Refused(f"{made[-1]:%Y-%m-%d %H:%M:%S %Z} has passed", hint="give a later moment, or 2h")
    return Pause(*made)


async def resume(conn: Conn, scope: str | None = None) -> list[Pause]:
    """Lift the pause of one scope, or (None) all; gives those that were in force. Raises Refused where a wider one would
    go on holding the scope."""
    if scope is not None:
        for wider in await standing(conn):
            if wider.covers(scope) and wider.scope != scope:
                raise Refused(
                    f"{wider.scope or 'everything'} is paused as a whole: {wider}",
                    hint=f"lift that: instep resume{' ' + wider.scope if wider.scope else ''}",
                )
    rows = await (await conn.execute(_SQL["resume"], {"scope": scope})).fetchall()
    return [Pause(*row) for row in rows]


async def standing(conn: Conn) -> list[Pause]:
    """All that are in force, the one of everything first."""
    return [Pause(*row) for row in await (await conn.execute(_SQL["standing"], {})).fetchall()]


async def forget(conn: Conn, scopes: Sequence[str]) -> None:
    """Of a source that is removed, and its derivations."""
    await conn.execute(_SQL["forget"], {"scopes": list(scopes)})


def covering(pauses: Iterable[Pause], derivation: str) -> Pause | None:
    """The widest pause that holds a derivation."""
    return min((one for one in pauses if one.covers(derivation)), key=lambda p: len(p.scope), default=None)


class Switch(Stop):
    """What the worker of one derivation asks before each wave: a `Stop` that finishes when the run's own does, and
    while the derivation is paused."""

    def __init__(self, stop: Stop, derivation: str, observer: Observer) -> None:
        super().__init__()
        self._run, self._derivation, self._observer = stop, derivation, observer
        self.paused: Pause | None = None
        self._unreadable = ""

    @property
    def finishing(self) -> bool:
        return self._run.finishing or self.paused is not None

    def finish(self) -> None:
        self._run.finish()

    async def wait(self, seconds: float) -> bool:
        return await self._run.wait(seconds)

    async def look(self, conn: Conn) -> bool:
        """Read the switch; whether this derivation is paused. Fails open."""
        try:
            found = covering(await standing(conn), self._derivation)
        except psycopg.Error as error:
            found = None
            self._tell_unreadable(describe(error))
        else:
            self._unreadable = ""
        if found != self.paused:
            self._tell(found)
        self.paused = found
        return found is not None

    def _tell(self, found: Pause | None) -> None:
        fields = {"derivation": self._derivation}
        if found is None:
            self._observer.event("resumed", fields)
        else:
            self._observer.event("paused", {**fields, "scope": found.scope, "message": str(found)})

    def _tell_unreadable(self, message: str) -> None:
        if message != self._unreadable:  # each trouble once, not every two seconds
            self._observer.event("pause unreadable", {"derivation": self._derivation, "message": message})
        self._unreadable = message
