"""Runs that stay: each source by itself, so that what stops one leaves the others alone, and begun again where it ended.

A run that stays ends by itself only where its connections, its table or its settings are gone. Without names all
sources are followed, those too that are added later (tests/faults/test_provider.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import psycopg
from psycopg_pool import PoolTimeout

from instep.clock import Clock
from instep.database.outages import is_schema
from instep.engine.ports import Observer, RunReport
from instep.engine.run import Options
from instep.engine.stopping import Stop
from instep.errors import InstepError, Outage, SettingsError

PAUSES = (1.0, 60.0)  # first and longest, before a run that stays is begun again
METRICS_SECONDS = 15.0  # between textfiles of a worker that stays
NEW_SECONDS = 5.0  # between looks for sources that were added


class Followed(Protocol):
    """What following needs of the app."""

    clock: Clock

    async def by_source(self, names: Sequence[str]) -> dict[str, list[str]]: ...

    async def source_names(self) -> Sequence[str]: ...

    async def run_source(
        self, source: str, wanted: Sequence[str], observer: Observer, stop: Stop, options: Options
    ) -> list[RunReport]: ...

    def options(self, *, follow: bool) -> Options: ...

    async def forget(self, source: str) -> None: ...

    async def write_metrics(self, derivations: Sequence[str]) -> bool: ...


async def follow(followed: Followed, names: Sequence[str], observer: Observer, stop: Stop) -> list[RunReport]:
    """Until `stop`: one report for each derivation. Raises Refused for unknown names, before any work."""
    chosen = await followed.by_source(names)
    running: dict[str, asyncio.Task[list[RunReport]]] = {}
    async with asyncio.TaskGroup() as group:
        for source, wanted in chosen.items():
            running[source] = group.create_task(_follow(followed, source, wanted, observer, stop))
        while not names and not await stop.wait(NEW_SECONDS):
            with suppress(psycopg.OperationalError, PoolTimeout):  # the runs say so; the next look finds it
                for source in await followed.source_names():
                    if source not in running or running[source].done():
                        wanted = (await followed.by_source([source]))[source]
                        task = _follow(followed, source, wanted, observer, stop)
                        running[source] = group.create_task(task)
    return [report for task in running.values() for report in task.result()]


async def _follow(
    followed: Followed, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
) -> list[RunReport]:
    async with _metrics(followed, wanted, observer):
        return await _again_and_again(followed, source, wanted, observer, stop)


async def _again_and_again(
    followed: Followed, source: str, wanted: Sequence[str], observer: Observer, stop: Stop
) -> list[RunReport]:
    # One token for all its runs: what a broken connection held outside PostgreSQL is taken up again.
    pause, clock, options = PAUSES[0], followed.clock, followed.options(follow=True)
    reports: list[RunReport] = []
    first = True
    while not stop.finishing:
        began = clock.monotonic()
        try:
            if not first and source not in await followed.source_names():
                observer.event("removed", {"source": source})
                return []
            reports = await followed.run_source(source, wanted, observer, stop, options)
        except (psycopg.Error, PoolTimeout) as error:
            if not (isinstance(error, psycopg.OperationalError) or is_schema(error)):
                raise
            observer.event("outage", {"source": source, "message": str(error), "seconds": pause})
        except SettingsError:
            raise  # of the process: no source can be worked
        except Outage as error:  # while connecting
            observer.event("outage", {"source": source, "message": str(error), "seconds": pause})
        except InstepError as error:  # of this source: others are worked on
            reports = [RunReport(name, configuration=str(error)) for name in wanted]
        first = False
        if stop.finishing:
            break
        await followed.forget(source)
        if any(report.moved for report in reports):
            continue
        if clock.monotonic() - began > pause:  # it worked for a while
            pause = PAUSES[0]
        message = next((r.outage or r.configuration for r in reports if r.outage or r.configuration), "")
        observer.event("outage", {"source": source, "message": message, "seconds": pause})
        await stop.wait(pause)
        pause = min(pause * 2, PAUSES[1])
    return reports


@asynccontextmanager
async def _metrics(followed: Followed, derivations: Sequence[str], observer: Observer) -> AsyncIterator[None]:
    """For a worker that stays: the same alert covers it. A database that is out is said by the run itself."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(METRICS_SECONDS)
            try:
                if not await followed.write_metrics(derivations):
                    return
            except (psycopg.OperationalError, PoolTimeout) as error:
                observer.event("metrics not written", {"message": str(error)})

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
