"""The statements of the chunk sink and of its loads stay on their indexes, whatever the statistics say; for keys from the
end of the table, because a merge that walks the index from its start looks harmless at the beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from embedding_world import DIMENSIONS, EmbeddingWorld
from explained import most_read, pages_read, plan_of

from instep.chunks.key_arrays import key_arrays
from instep.engine.declaration import Columns
from instep.testing.model_server import ModelServer

Conn = psycopg.AsyncConnection[Any]
ROWS, WAVE = 200_000, 500
CHUNK, LAYOUT = "instep.chunk_articles_embed_1", "instep.layout_articles_embed_1"


@pytest.fixture
async def world(dsn: str, conn: Conn) -> AsyncIterator[EmbeddingWorld]:
    async with ModelServer("tei", dimensions=DIMENSIONS) as server:
        made = await EmbeddingWorld.make(dsn, conn, server)
        await made.derivation.sink.prepare(conn, made.target)
        for table in ("articles", CHUNK, LAYOUT):
            await conn.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        await made.insert(ROWS)
        await conn.execute(
            f"insert into {CHUNK} (key_1, text_hash, text, vector) select g, sha256(g::text::bytea), 'x',"
            f" array_fill(0.1, array[{DIMENSIONS}])::vector from generate_series(1, {ROWS}) g".encode()
        )
        await conn.execute(
            f"insert into {LAYOUT} select g, array[sha256(g::text::bytea)], array[0], array[1]"
            f" from generate_series(1, {ROWS}) g".encode()
        )
        yield made
        await made.embedder.close()


async def test_chunks_are_found_by_their_keys(world: EmbeddingWorld, conn: Conn) -> None:
    arrays = key_arrays(Columns(world.source.key), [(key,) for key in range(ROWS - WAVE, ROWS)])
    sink, loads = world.derivation.sink._statements(world.target), world.derivation._bound(world.target)
    hot = {
        "read_old": (sink, arrays),
        "delete_layouts": (sink, arrays),
        "delete_chunks": (sink, {**arrays, "text_hash": [b"x"] * WAVE}),
        "load_short": (loads, {**arrays, "each": 10**6}),
        "load": (loads, {**arrays, "limit": 10**9}),
        "existing": (loads, arrays),
    }
    bad = []
    for statistics in ("missing", "fresh"):
        if statistics == "fresh":
            await conn.execute("analyze")
        for name, (statements, values) in hot.items():
            for form in ("custom", "generic"):
                plan = await plan_of(conn, statements[name], values, form)
                if "Seq Scan" in plan or most_read(plan) > 2 * WAVE or pages_read(plan) > 12 * WAVE:
                    bad.append(f"{statistics} {form} {name}\n{plan}")
    assert not bad, "\n\n".join(bad)


async def test_without_its_index_the_guard_fails(world: EmbeddingWorld, conn: Conn) -> None:
    await conn.execute(f"alter table {CHUNK} drop constraint chunk_articles_embed_1_pkey".encode())
    arrays = key_arrays(Columns(world.source.key), [(ROWS,)])
    for statements, name in (
        (world.derivation.sink._statements(world.target), "read_old"),
        (world.derivation._bound(world.target), "existing"),
    ):
        assert most_read(await plan_of(conn, statements[name], arrays, "custom")) > 2 * WAVE
