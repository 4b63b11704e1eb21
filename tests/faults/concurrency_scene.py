"""Workers and writers as real processes on one table, and somebody who looks on from outside at who waits for whom."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from app_scene import DIMENSIONS, added, opened
from cli_scene import ModelThread

WRITER = Path(__file__).with_name("writer.py")
LOOK_SECONDS = 0.01

WAITS = """
select w.pid, w.application_name, w.query_start, b.pid, b.application_name, b.query_start, b.state, b.query
from pg_stat_activity w cross join lateral unnest(pg_blocking_pids(w.pid)) as blocking (pid)
join pg_stat_activity b on b.pid = blocking.pid
where w.datname = current_database() and w.wait_event_type = 'Lock'
"""


@dataclass
class Wait:
    """One statement of one session that waited for one other session."""

    waiter: str
    blocker: str
    first: float
    last: float
    statements: set[str] = field(default_factory=set)  # of the blocker, commits left out

    @property
    def seconds(self) -> float:
        """As it was seen: up to two looks longer in truth."""
        return self.last - self.first


@dataclass
class Onlooker:
    waits: dict[tuple[Any, ...], Wait] = field(default_factory=dict)
    looks: int = 0
    quiet: bool = False  # where its own looks would be counted
    pids: set[int] = field(default_factory=set)  # every session seen in the database

    async def look(self, dsn: str) -> None:
        """Until cancelled."""
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            while not self.quiet:
                now = time.monotonic()
                for waiter, waiting, since, blocker, blocking, began, _, query in await (
                    await conn.execute(WAITS)
                ).fetchall():
                    wait = self.waits.setdefault((waiter, since, blocker), Wait(waiting, blocking, now, now))
                    wait.last = now
                    if query.lower().strip().rstrip(";") not in ("commit", "rollback"):
                        wait.statements.add(f"{began} {query[:300]}")
                if self.looks % 20 == 0:
                    pids = await conn.execute(
                        "select pid from pg_stat_activity where datname = current_database()"
                    )
                    self.pids |= {pid for (pid,) in await pids.fetchall()}
                self.looks += 1
                await asyncio.sleep(LOOK_SECONDS)

    def of(self, waiter: str, blocker: str) -> list[Wait]:
        return [wait for wait in self.waits.values() if wait.waiter == waiter and wait.blocker == blocker]


@dataclass
class Process:
    process: asyncio.subprocess.Process
    out: str = ""
    err: str = ""

    async def ended(self, seconds: float = 60) -> int:
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate()
        self.out, self.err = out.decode(), err.decode()
        assert self.process.returncode is not None
        return self.process.returncode


@dataclass
class Crowd:
    dsn: str
    environment: Mapping[str, str]
    onlooker: Onlooker = field(default_factory=Onlooker)
    everybody: list[Process] = field(default_factory=list)
    ended: list[Process] = field(default_factory=list)
    runs: int = 0

    async def start(self, *command: str, stdin: bool = False) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=os.environ | self.environment,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.everybody.append(Process(process))
        return self.everybody[-1]

    async def follow(self) -> Process:
        return await self.start("-m", "instep", "worker", "--follow", "articles")

    async def again_and_again(self, stop: asyncio.Event) -> None:
        """Runs that end, one after the other: each begins with a sweep."""
        while not stop.is_set():
            run = await self.start("-m", "instep", "run", "articles", "--json")
            assert await run.ended(120) == 0, run.out + run.err
            self.ended.append(run)
            self.runs += 1

    async def writers(self, count: int, seconds: float, truncate_every: float) -> tuple[Counter[str], float]:
        """What they did, and the longest statement or transaction of any."""
        writers = [
            await self.start(
                str(WRITER), self.dsn, str(seed), str(seconds), str(truncate_every if seed == 0 else 0)
            )
            for seed in range(count)
        ]
        done, longest = Counter[str](), 0.0
        for writer in writers:
            assert await writer.ended(seconds + 120) == 0, writer.err
            told = json.loads(writer.out)
            done.update(told["done"])
            longest = max(longest, told["longest"])
        return done, longest

    async def run(self, *arguments: str) -> Process:
        """`instep ARGUMENTS`, to its end."""
        run = await self.start("-m", "instep", *arguments)
        await run.ended(120)
        return run

    async def stopped(self, process: Process) -> int:
        """Its exit code after SIGINT, or the one with which it had ended by itself."""
        if process.process.returncode is None:
            process.process.send_signal(signal.SIGINT)
        return await process.ended()

    async def value(self, statement: str) -> Any:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            row = await (await conn.execute(statement.encode())).fetchone()
        return None if row is None else row[0]

    async def deadlocks(self) -> int:
        return int(
            await self.value("select deadlocks from pg_stat_database where datname = current_database()")
        )

    def deadlocks_in(self, log: str) -> list[str]:
        """Lines of the server's log; the prefix is `time [pid] application`."""
        found = re.findall(r"^\S+ \S+ \S+ \[(\d+)\] .*deadlock detected.*$", log, re.MULTILINE)
        return [pid for pid in found if int(pid) in self.onlooker.pids]


@asynccontextmanager
async def crowd(dsn: str, directory: Path, **environment: str) -> AsyncIterator[Crowd]:
    """`articles(id, title, published, other)`, embedded and searchable in PostgreSQL. Ends what was started."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(
            "create table articles (id bigint primary key, title text, published boolean not null default true,"
            " other integer not null default 0)"
        )
    with ModelThread() as model:
        model.server.dimensions = DIMENSIONS
        async with opened(dsn, model.server, directory) as app:
            await added(app, "articles", "title", engine="postgres", where="published")
        made = Crowd(
            dsn,
            {
                "DATABASE_URL": dsn,
                "INSTEP_DATA_DIR": str(directory),
                "INSTEP_EMBED_PROVIDER": "tei",
                "INSTEP_EMBED_URL": model.server.url,
                "INSTEP_EMBED_MODEL": model.server.model_name,
                "INSTEP_POLL_SECONDS": "0.05",
                "INSTEP_BATCH_SIZE": "25",
                "NO_COLOR": "1",
                **environment,
            },
        )
        looking = asyncio.create_task(made.onlooker.look(dsn))
        try:
            yield made
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            for one in made.everybody:
                if one.process.returncode is None:
                    one.process.kill()
                    await one.process.wait()
