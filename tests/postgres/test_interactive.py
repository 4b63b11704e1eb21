"""The signal that queries come: across processes, behind a pooler, at no cost for a request."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from app_scene import DIMENSIONS, added, opened, ran

from instep.database import interactive
from instep.database.interactive import Interactive
from instep.database.pool import Database
from instep.inference.ports import Precedence
from instep.settings import Settings
from instep.testing.model_server import ModelServer

SERVER = "http://127.0.0.1:8080/"


@asynccontextmanager
async def signal(dsn: str, **flags: Any) -> AsyncIterator[Interactive]:
    settings = Settings.load(flags={"database_url": dsn, **flags}, environ={})
    async with await Database.open(settings) as database:
        one = Interactive(database)
        try:
            yield one
        finally:
            await one.close()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_query_of_one_process_is_seen_by_another_and_passes(
    dsn: str, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    monkeypatch.setattr(interactive, "EXPIRY_SECONDS", 1.5)
    async with signal(dsn, pooler=pooled) as worker, signal(dsn, pooler=pooled) as asking:
        port: Precedence = worker
        assert not port.wanted(SERVER)
        asking.announce(SERVER)
        await until(lambda: port.wanted(SERVER), 5)
        assert not port.wanted("http://another.example/")
        await until(lambda: not port.wanted(SERVER), 5)


async def test_another_process_is_heard(dsn: str) -> None:
    """A process that asks once and ends at once has told of it."""
    code = (
        "import asyncio\nfrom instep.database.interactive import Interactive\nfrom instep.database.pool import Database\n"
        "from instep.settings import Settings\n"
        "async def main():\n"
        f"    async with await Database.open(Settings.load(flags={{'database_url': {dsn!r}}}, environ={{}})) as database:\n"
        f"        one = Interactive(database)\n        one.announce({SERVER!r})\n        await one.close()\n"
        "asyncio.run(main())"
    )
    async with signal(dsn) as worker:
        assert not worker.wanted(SERVER)
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        await until(lambda: worker.wanted(SERVER), 5)


async def test_it_costs_next_to_nothing(dsn: str) -> None:
    """Ten thousand queries are one write; ten thousand bulk requests a few looks; nothing at all when nothing is sent."""
    async with signal(dsn) as one:
        for _ in range(10_000):
            one.announce(SERVER)
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 1.2:
            for _ in range(200):
                one.wanted(SERVER)
            await asyncio.sleep(0.01)
        assert one.writes == 1
        assert 2 <= one.looks <= 7
        await asyncio.sleep(interactive.IDLE_SECONDS + 0.6)
        looks = one.looks
        await asyncio.sleep(0.8)
        assert one.looks == looks


async def test_a_database_that_does_not_answer_changes_nothing(dsn: str, conn: Any) -> None:
    async with signal(dsn) as one:
        await conn.execute("drop table instep.interactive")
        one.announce(SERVER)
        assert not one.wanted(SERVER)
        await until(lambda: one.looks >= 1 and not one._writing)
        assert not one.wanted(SERVER)


async def test_a_role_that_may_not_write_may_search(dsn: str, conn: Any) -> None:
    role = f"reader_{conn.info.dbname}"
    await conn.execute(f"create role {role} login; grant usage on schema instep to {role}")
    try:
        async with signal(psycopg.conninfo.make_conninfo(dsn, user=role)) as one:
            one.announce(SERVER)
            await until(lambda: one.writes == 1 and not one._writing)
    finally:
        await conn.execute(f"drop owned by {role}; drop role {role}")


async def test_a_search_announces_and_a_run_looks_and_its_probe_does_not_count(
    dsn: str, conn: Any, tmp_path: Path
) -> None:
    await conn.execute("create table notes (id bigint primary key, body text)")
    await conn.execute("insert into notes select g, 'note ' || g from generate_series(1, 40) g")
    async with ModelServer("tei", dimensions=DIMENSIONS) as server, opened(dsn, server, tmp_path) as app:
        await added(app, "notes", "body")
        await ran(app, "notes.embed")
        assert await rows(conn) == []  # neither bulk work nor the probe is a query
        assert app.interactive.looks >= 1
        await app.search("notes", "note", mode="dense")
        await until(lambda: not app.interactive._writing)
        assert await rows(conn) == [(server.url,)]


async def test_queries_may_have_a_server_of_their_own(dsn: str, conn: Any, tmp_path: Path) -> None:
    """Then bulk work need not make way, and one client is made for all searches."""
    await conn.execute("create table notes (id bigint primary key, body text)")
    await conn.execute("insert into notes select g, 'note ' || g from generate_series(1, 40) g")
    async with (
        ModelServer("tei", dimensions=DIMENSIONS) as server,
        ModelServer("tei", dimensions=DIMENSIONS) as own,
        opened(dsn, server, tmp_path, query_embed_url=own.url) as app,
    ):
        await added(app, "notes", "body")
        await ran(app, "notes.embed")
        bulk = server.requests
        for _ in range(3):
            await app.search("notes", "note", mode="dense")
        await until(lambda: not app.interactive._writing)
        assert (server.requests, own.requests, own.infos) == (bulk, 3, 1)
        assert await rows(conn) == [(own.url,)]


async def rows(conn: Any) -> list[tuple[str]]:
    found = await (await conn.execute("select server from instep.interactive")).fetchall()
    return [(server.rstrip("/"),) for (server,) in found]


async def test_what_does_not_work_is_said_once(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(interactive, "TROUBLE_SECONDS", 0.05)
    monkeypatch.setattr(interactive, "ANNOUNCE_SECONDS", 0.0)
    await conn.execute("drop table instep.interactive")
    async with signal(dsn) as one:
        one.announce(SERVER)
        one.wanted(SERVER)
        await until(lambda: one.looks > 2, 5)
        await asyncio.sleep(0.1)
        one.announce(SERVER)
        await until(lambda: one.writes > 1, 5)
    said = [record.getMessage() for record in caplog.records if record.name == "instep.interactive"]
    assert sorted(words.split(" ")[1] for words in said) == ["see", "tell"]
    assert all("interactive" in words for words in said)
