"""A run that stays: begun again, after a pause, where its connections or its table were gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import psycopg

from instep.clock import Clock
from instep.database.outages import is_schema
from instep.engine.ports import Observer, RunReport
from instep.engine.stopping import Stop
from instep.errors import Refused

PAUSES = (1.0, 60.0)  # seconds, first and longest, before a run that stays is begun again


async def follow(
    source: str,
    wanted: Sequence[str],
    *,
    work: Callable[[], Awaitable[list[RunReport]]],
    is_there: Callable[[], Awaitable[bool]],
    forget: Callable[[], Awaitable[None]],
    clock: Clock,
    observer: Observer,
    stop: Stop,
) -> list[RunReport]:
    """Call `work`, which runs the derivations `wanted` of `source` and stays, until it is told to finish or the source
    is not there any more. `forget`: what was made of the source is made anew."""
    pause, first = PAUSES[0], True
    reports: list[RunReport] = []
    while not stop.finishing:
        began = clock.monotonic()
        try:
            if not first and not await is_there():
                observer.event("removed", {"source": source})
                return []
            reports = await work()
        except psycopg.Error as error:
            if not (isinstance(error, psycopg.OperationalError) or is_schema(error)):
                raise
            observer.event("outage", {"source": source, "message": str(error), "seconds": pause})
        except Refused as error:  # what was well when it began: other sources are worked on
            if first:
                raise
            reports = [RunReport(name, configuration=str(error)) for name in wanted]
        first = False
        if stop.finishing:
            break
        await forget()
        if any(report.moved for report in reports):
            continue
        if clock.monotonic() - began > PAUSES[1]:
            pause = PAUSES[0]
        message = next((r.outage or r.configuration for r in reports if r.outage or r.configuration), "")
        observer.event("outage", {"source": source, "message": message, "seconds": pause})
        await stop.wait(pause)
        pause = min(pause * 2, PAUSES[1])
    return reports
