"""Public bug reports of peers (PEERS.md, sections C1 and C2) over the whole path, down to the chunk rows.

docs/peers-cases.md lists every case with its tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from app_scene import DIMENSIONS, added, found, opened
from embedding_world import EmbeddingWorld

from instep.app import Instep
from instep.engine import exclusive
from instep.engine.ports import Conn
from instep.engine.stopping import Stop
from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer("tei", dimensions=DIMENSIONS) as running:
        yield running


@pytest.fixture
async def world(dsn: str, conn: Conn, server: ModelServer) -> AsyncIterator[EmbeddingWorld]:
    made = await EmbeddingWorld.make(dsn, conn, server)
    yield made
    await made.embedder.close()


@pytest.fixture
async def app(dsn: str, server: ModelServer, tmp_path: Path) -> AsyncIterator[Instep]:
    async with opened(dsn, server, tmp_path) as app:
        yield app


async def left(world: EmbeddingWorld) -> dict[str, int]:
    """Rows of everything that is derived from articles, by plain SQL."""
    tables = {
        "chunks": world.tables.chunk.as_string(None),
        "layouts": world.tables.layout.as_string(None),
        "stamps": "instep.stamp_articles_embed",
        "entries": "instep.outbox_articles_embed",
        "log": "instep.change_articles",
    }
    counted: dict[str, int] = {}
    for name, table in tables.items():
        counted[name] = (await world.rows(f"select count(*) from {table}"))[0][0]
    return counted


GONE = {"chunks": 0, "layouts": 0, "stamps": 0, "entries": 0, "log": 0}


@pytest.mark.parametrize(
    "statement",
    ["delete from articles", "truncate articles", "truncate authors cascade", "delete from authors"],
)
async def test_c1_4_whatever_empties_the_table_leaves_no_derived_row(
    world: EmbeddingWorld, statement: str
) -> None:
    await world.conn.execute(
        "create table authors (id bigint primary key); insert into authors select generate_series(1, 200);"
        "alter table articles add foreign key (id) references authors on delete cascade"
    )
    await world.insert(200)
    await world.run()
    before = await left(world)
    assert (before["chunks"], before["stamps"]) == (200, 200)
    await world.conn.execute(statement)
    report = await world.run()
    assert (report.exit_code, report.counters.removed) == (0, 200)
    assert await left(world) == GONE


async def test_c1_5_a_truncate_while_the_server_is_held_returns_at_once_and_leaves_no_vector(
    world: EmbeddingWorld,
) -> None:
    await world.insert(20)
    world.server.hold()
    running = asyncio.create_task(world.run())
    await world.server.arrived(1)
    await world.conn.execute("set statement_timeout = '500ms'")
    await world.conn.execute("truncate articles")
    await world.conn.execute("set statement_timeout = 0")
    world.server.release()
    await running
    await world.run()
    assert await left(world) == GONE


async def test_c1_6_updates_before_the_first_version_is_worked_leave_one_set_of_chunks(
    world: EmbeddingWorld,
) -> None:
    """Of a row that waits, that was worked, and that is worked at this moment."""
    await world.insert(1)
    for number in range(3):
        await world.conn.execute("update articles set title = %s", (f"version {number}",))
    await world.run()
    assert await world.chunks() == {1: {"version 2"}}
    await world.conn.execute("update articles set title = 'version 3'")
    world.server.hold()
    running = asyncio.create_task(world.run())
    await world.server.arrived(1)
    await world.conn.execute("update articles set title = 'version 4'")
    await world.conn.execute("update articles set title = 'version 5'")
    world.server.release()
    await running
    await world.run()
    assert await world.chunks() == {1: {"version 5"}}
    assert await left(world) == {**GONE, "chunks": 1, "stamps": 1}


async def test_c1_10_a_delete_and_then_silence_reaches_a_worker_that_stays(app: Instep, conn: Any) -> None:
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    await conn.execute("insert into notes values (1, 'apple'), (2, 'pear')")
    stop = Stop()
    working = asyncio.create_task(app.run(["notes"], observer=Recorder(), stop=stop, follow=True))
    try:
        async with asyncio.timeout(40):
            while await stamps(conn) != 2:
                await asyncio.sleep(0.05)
            await conn.execute("delete from notes where id = 1")
            while await stamps(conn) != 1:
                await asyncio.sleep(0.05)
        assert await found(app, "notes", "apple") == []
    finally:
        stop.finish()
        await working
    rows = await (await conn.execute("select id from instep.notes_chunks")).fetchall()
    assert rows == [(2,)]


async def stamps(conn: Any) -> int:
    row = await (await conn.execute("select count(*) from instep.stamp_notes_embed")).fetchone()
    return int(row[0])


async def test_c2_20_c2_30_an_output_that_a_dead_worker_held_is_free_when_its_hold_runs_out(
    conn: Conn,
) -> None:
    """An index has one drainer at a time; one that died neither keeps it for ever nor counts against its successor."""
    died = await exclusive.acquire(conn, "articles.search", 1)
    with pytest.raises(exclusive.HeldElsewhere):
        await exclusive.acquire(conn, "articles.search", 2)
    await conn.execute("update instep.exclusive set lease_until = now() - interval '1 s'")
    successor = await exclusive.acquire(conn, "articles.search", 2)
    assert not await died.renew(conn), "it was only away: it does not get it back"
    await died.release(conn)
    assert await successor.renew(conn), "and cannot give away what is another's now"
