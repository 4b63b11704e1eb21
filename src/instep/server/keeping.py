"""What a server does beside answering: it counts what waits, and tells those who listen when a figure changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from instep.app import Instep
from instep.engine import glance, pause
from instep.errors import InstepError
from instep.upkeep import sampling

LOOK_SECONDS = 1.0  # between looks at the figures while somebody listens
NEW_SECONDS = 2.0  # a derivation that has no sample yet makes one due, at most so often
MOST_BEHIND = 100  # events that a listener may be behind; then it misses those between

_log = structlog.get_logger("instep.server")

Figures = dict[str, dict[str, Any]]


class Keeper:
    """Samples each `every` seconds; looks each second while there are listeners, once for all of them."""

    def __init__(self, app: Instep, every: float) -> None:
        self._app, self._every = app, every
        self._listeners: set[asyncio.Queue[Figures]] = set()
        self._heard = asyncio.Event()
        self._latest: Figures = {}
        self._sampled: Figures = {}

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def coverage(self, source: str) -> float | None:
        """Which share of a source's rows has all its outputs, as it was sampled last; without asking the database."""
        shares = [
            figures["coverage"]
            for name, figures in self._sampled.items()
            if name.partition(".")[0] == source and figures["coverage"] is not None
        ]
        return min(shares, default=None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._sample()), asyncio.create_task(self._look())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[asyncio.Queue[Figures]]:
        """A queue of figures: all of them at once, then those of each derivation that changed."""
        queue: asyncio.Queue[Figures] = asyncio.Queue(MOST_BEHIND)
        if self._latest and self._listeners:
            queue.put_nowait(self._latest)
        else:
            self._latest = {}  # old: nobody looked while nobody listened
        self._listeners.add(queue)
        self._heard.set()
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    async def figures(self) -> Figures:
        """By name: what was sampled last, with what can be counted at once as it is now."""
        async with self._app.database.connection() as conn:
            seen_now = await glance.glance(conn)
            found = {one.name: one.as_dict() for one in await sampling.samples(conn)}
            if seen_now.keys() - found.keys():  # just added: it is not waited for
                await sampling.sample(conn, every=NEW_SECONDS, clock=self._app.clock)
                found = {one.name: one.as_dict() for one in await sampling.samples(conn)}
            pauses = await pause.standing(conn)
            for name, seen in seen_now.items():
                if name not in found:
                    continue
                if seen.exact:
                    found[name] |= {"depth": seen.depth, "dead": seen.dead}
                held = pause.covering(pauses, name)
                found[name] |= {"paused": held and held.as_dict()}
                found[name]["state"] = _state(found[name], held is not None)
        return found

    async def _sample(self) -> None:
        while True:
            async with _told("sample"):
                async with self._app.database.connection() as conn:
                    await sampling.sample(conn, every=self._every, clock=self._app.clock)
                    self._sampled = {one.name: one.as_dict() for one in await sampling.samples(conn)}
            await asyncio.sleep(self._every)

    async def _look(self) -> None:
        while True:
            await self._heard.wait()
            if not self._listeners:
                self._heard.clear()
                continue
            async with _told("look"):
                self._tell(await self.figures())
            await asyncio.sleep(LOOK_SECONDS)

    def _tell(self, now: Figures) -> None:
        changed = {
            name: one for name, one in now.items() if _plain(one) != _plain(self._latest.get(name, {}))
        }
        gone = {name: {"name": name, "state": "removed"} for name in self._latest.keys() - now.keys()}
        self._latest = now
        if not changed and not gone:
            return
        for queue in self._listeners:
            if not queue.full():  # one that reads too slowly misses events, and learns of the next
                queue.put_nowait({**changed, **gone})


def _state(figures: dict[str, Any], paused: bool) -> str:
    """The sampled word, held against what is so now."""
    state, depth = str(figures["state"]), figures["depth"]
    if state == "misconfigured":
        return state
    if paused:
        return "paused"
    if state == "paused" or (depth and state == "in step"):
        return "catching up" if depth else "in step"
    return "in step" if not depth and state in ("catching up", "behind") else state


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Without what changes by itself as time passes."""
    run = figures.get("last_run") or {}
    kept = {
        name: value
        for name, value in figures.items()
        if name not in ("as_of", "oldest_wait_seconds", "last_run")
    }
    return {**kept, "run": (run.get("outcome"), run.get("counters"))}


@asynccontextmanager
async def _told(what: str) -> AsyncIterator[None]:
    """No trouble ends counting or looking: it is logged, and the next turn tries again."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, InstepError) as error:
        _log.warning(f"{what} failed", message=str(error))
    except Exception as error:  # noqa: BLE001 a defect: said in the log, with where; those who listen are not left alone
        _log.error(f"{what} failed", exc_info=error)
