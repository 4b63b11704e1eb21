"""A user's table, its two derivations, a model server, and workers that are real processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from app_scene import DIMENSIONS, added, opened
from invariants import check

from instep.testing.model_server import ModelServer

ROWS = "select id, true, body, array[body]::text[] from notes"


@dataclass
class Scene:
    """`notes(id, body)` with notes.embed and notes.search in PostgreSQL. `dsn` leads straight to the server."""

    dsn: str
    model: ModelServer
    directory: Path
    environment: dict[str, str]
    workers: list[Worker] = field(default_factory=list)

    async def start(
        self, *arguments: str, dsn: str = "", under: tuple[str, ...] = (), **settings: Any
    ) -> Worker:
        """`instep ARGUMENTS` as a process, by way of `dsn`; settings by their name, in lower case."""
        given = {f"INSTEP_{name.upper()}": str(value) for name, value in settings.items()}
        process = await asyncio.create_subprocess_exec(
            *under, sys.executable, "-m", "instep", *arguments,
            env=os.environ | self.environment | {"DATABASE_URL": dsn or self.dsn} | given,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        worker = Worker(process, arguments)
        self.workers.append(worker)
        return worker

    async def run(self, *arguments: str, seconds: float = 120, **settings: Any) -> Worker:
        worker = await self.start("run", *arguments, **settings)
        await worker.ended(seconds)
        return worker

    async def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            cursor = await conn.execute(statement, values or None)
            return await cursor.fetchall() if cursor.description else []

    async def insert(self, rows: int, first: int = 1) -> None:
        await self.rows(
            "insert into notes select g, 'note ' || g from generate_series(%s::int, %s::int) g",
            first,
            first + rows - 1,
        )

    async def in_step(self) -> list[str]:
        """What is wrong, by invariants.py: nothing but f(source), each once, and nothing left in the queue. Of the
        search documents, whose words the stemmer changes, the number, the stamps and the queue."""
        source = {key for (key,) in await self.rows("select id from notes")}
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            wrong = [str(violation) for violation in await check(conn, "notes.embed", ROWS)]
        ((left,),) = await self.rows("select count(*) from instep.outbox_notes_search")
        if left:
            wrong.append(f"notes.search: {left} entries")
        stamps = {key for (key,) in await self.rows("select key_1 from instep.stamp_notes_search")}
        if stamps != source:
            wrong.append(f"notes.search: {len(stamps)} stamps of {len(source)} rows")
        found = await self.rows("select count(*) from instep.lexical_notes_search_2")
        if found != [(len(source),)]:
            wrong.append(f"{found[0][0]} search documents of {len(source)} rows")
        return wrong

    async def done(self) -> int:
        """Rows that are embedded."""
        return int((await self.rows("select count(*) from instep.stamp_notes_embed"))[0][0])

    async def counted(self) -> int:
        """Attempts that anybody counted, in either queue."""
        rows = await self.rows(
            "select coalesce(sum(attempts), 0) from (select attempts from instep.outbox_notes_embed"
            " union all select attempts from instep.outbox_notes_search) o"
        )
        return int(rows[0][0])

    async def until_in_step(self, seconds: float) -> None:
        """Looks until the queues are empty and the change log is; then everything must be right."""
        deadline = time.monotonic() + seconds
        while wrong := await self._waiting():
            assert time.monotonic() < deadline, wrong
            await asyncio.sleep(0.3)
        assert await self.in_step() == []

    async def _waiting(self) -> str:
        try:
            left = await self.rows(
                "select (select count(*) from instep.outbox_notes_embed), (select count(*) from instep.outbox_notes_search),"
                " (select count(*) from instep.change_notes), (select count(*) from notes)"
                " - (select count(*) from instep.stamp_notes_embed)"
            )
        except psycopg.OperationalError as error:
            return str(error)
        return "" if left == [(0, 0, 0, 0)] else str(left)


@dataclass
class Worker:
    process: asyncio.subprocess.Process
    arguments: tuple[str, ...] = ()
    began: float = field(default_factory=time.monotonic)
    out: str = ""
    err: str = ""
    seconds: float = 0.0  # that it lived

    @property
    def code(self) -> int | None:
        return self.process.returncode

    async def ended(self, seconds: float) -> int:
        """Its exit code; fails where it has not ended within `seconds` from now."""
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate()
        self.out, self.err = out.decode(), err.decode()
        self.seconds = time.monotonic() - self.began
        assert self.code is not None
        return self.code

    async def stop(self, number: int, seconds: float = 60) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return await self.ended(seconds)


@asynccontextmanager
async def scene(dsn: str, directory: Path, rows: int = 0, **environment: str) -> AsyncIterator[Scene]:
    """The table is added and holds `rows`; nothing was run. Ends what was started."""
    async with ModelServer("tei", dimensions=DIMENSIONS) as model:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            await conn.execute("create table notes (id bigint primary key, body text)")
        async with opened(dsn, model, directory) as app:
            await added(app, "notes", "body", engine="postgres")
        made = Scene(dsn, model, directory, _environment(model, directory) | environment)
        await made.insert(rows)
        try:
            yield made
        finally:
            for worker in made.workers:
                if worker.code is None:
                    worker.process.kill()
                    await worker.process.wait()


def _environment(model: ModelServer, directory: Path) -> Mapping[str, str]:
    return {
        "INSTEP_DATA_DIR": str(directory),
        "INSTEP_EMBED_PROVIDER": "tei",
        "INSTEP_EMBED_URL": model.url,
        "INSTEP_EMBED_MODEL": model.model_name,
        "INSTEP_POLL_SECONDS": "0.1",
        "NO_COLOR": "1",
    }
