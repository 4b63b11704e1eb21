"""What processes tell one another of queries, by a row with an expiry: `inference.ports.Precedence` over the database.

What holds (tests/postgres/test_interactive.py): a query costs no round trip of its own (one write in the background
every few seconds); bulk work costs none for each request (one look every `POLL_SECONDS` while it sends any, none when
it does not); a database that does not answer changes nothing; it works behind a pooler in transaction mode.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import PoolClosed, PoolTimeout

from instep.clock import SYSTEM, Clock
from instep.database.statements import Statements

EXPIRY_SECONDS = 15.0  # after the last query
ANNOUNCE_SECONDS = EXPIRY_SECONDS / 3  # between two writes of one process
POLL_SECONDS = 0.25
TROUBLE_SECONDS = 5.0  # before a database that did not answer is asked again
IDLE_SECONDS = 1.0  # without a bulk request: no more looks

_log = logging.getLogger("instep.interactive")
_SQL = Statements("instep.database", "interactive.sql")


class Connections(Protocol):
    def connection(self) -> AbstractAsyncContextManager[AsyncConnection[TupleRow]]: ...


class Interactive:
    """One process's view. Made with the app, closed with it."""

    def __init__(self, database: Connections, clock: Clock = SYSTEM) -> None:
        self._database, self._clock = database, clock
        self._announced: dict[str, float] = {}  # server → when it was last written
        self._until: dict[str, float] = {}  # server → until when others want it, by our clock
        self._asked = 0.0  # when bulk work last wanted to know
        self._looking: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()
        self.looks = self.writes = 0  # round trips so far
        self._told: set[str] = set()  # what does not work, each said once

    def announce(self, server: str) -> None:
        """A query is about to be sent to `server`. Returns at once."""
        now = self._clock.monotonic()
        if now - self._announced.get(server, -ANNOUNCE_SECONDS) < ANNOUNCE_SECONDS:
            return
        self._announced[server] = now
        task = asyncio.get_running_loop().create_task(self._write(server))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def wanted(self, server: str) -> bool:
        """Whether any process has announced a query to `server` lately, as far as was seen. Returns at once."""
        self._asked = now = self._clock.monotonic()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._until.get(server, 0.0) > now

    async def close(self) -> None:
        """What is being written is waited for: a process that asks one query and ends has told others of it."""
        if self._looking is not None:
            self._looking.cancel()
        looking = [self._looking] if self._looking is not None else []
        await asyncio.gather(*self._writing, *looking, return_exceptions=True)

    async def _write(self, server: str) -> None:
        self.writes += 1
        try:
            async with self._database.connection() as conn:
                await conn.execute(_SQL["announce"], {"server": server, "seconds": EXPIRY_SECONDS})
        except (psycopg.Error, PoolTimeout, PoolClosed) as error:
            self._tell("cannot tell workers of queries, which wait behind their requests", error)
            self._announced[server] = self._clock.monotonic() + TROUBLE_SECONDS

    async def _look(self) -> None:
        try:
            while True:
                await asyncio.sleep(POLL_SECONDS if await self._seen() else TROUBLE_SECONDS)
                if self._clock.monotonic() - self._asked >= IDLE_SECONDS:
                    return
        finally:
            self._looking = None

    async def _seen(self) -> bool:
        self.looks += 1
        try:
            async with self._database.connection() as conn:
                rows = await (await conn.execute(_SQL["wanted"], {})).fetchall()
        except (psycopg.Error, PoolTimeout, PoolClosed) as error:
            self._tell("cannot see whether queries wait, which go behind these requests", error)
            return False  # what was seen last holds until it expires
        now = self._clock.monotonic()
        self._until = {server: now + seconds for server, seconds in rows}
        return True

    def _tell(self, what: str, error: Exception) -> None:
        """Nothing stops for it, but somebody may want to mend it: a role without rights, say."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s: %s", what, str(error).strip() or type(error).__name__)
