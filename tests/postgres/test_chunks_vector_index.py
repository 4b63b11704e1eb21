"""The vector index is built by itself, once, when the first fill is as good as over."""

from __future__ import annotations

import asyncio

import numpy as np
import psycopg
import pytest
from embedding_scene import Scene, scene

from instep.chunks import vector_index
from instep.chunks.entity_chunks import EntityChunks
from instep.engine.ports import Output


async def fill(s: Scene, count: int, type_vectors: np.ndarray | None = None) -> np.ndarray:
    vectors = np.random.default_rng(5).standard_normal((count, 8)).astype(np.float32)
    outputs = []
    for k in range(count):
        digest = k.to_bytes(32, "big")
        chunks = EntityChunks((digest,), (0,), (1,), {digest: str(k)}, vectors, (k,))
        outputs.append(Output((k,), b"h", chunks))
    await s.write(outputs)
    await s.conn.execute(
        "insert into instep.stamp_articles_embed (key_1, target, content_hash)"
        " select g, %s, 'h' from generate_series(0, %s - 1) g on conflict do nothing",
        (s.target.name, count),
    )
    return vectors


async def valid(s: Scene) -> list[tuple[str, bool]]:
    return await s.rows(
        "select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid "
        "where i.indrelid = %s::regclass and not i.indisprimary",
        s.tables.chunk.as_string(None),
    )


@pytest.mark.parametrize("type", ["vector", "halfvec"])
async def test_built_after_the_first_fill_and_used(conn, type):
    s = await scene(conn, type=type)
    await fill(s, 999)
    await s.derivation.sink.finish(conn, s.target)
    assert await valid(s) == []
    vectors = await fill(s, 3000)
    await s.derivation.sink.finish(conn, s.target)
    assert await valid(s) == [("chunk_articles_embed_1_hnsw", True)]
    query = f"[{','.join(map(str, vectors[77]))}]"
    await conn.execute("set enable_seqscan = off")
    found = await s.rows(f"select key_1 from {{chunk}} order by vector <=> %s::{type}(8) limit 1", query)
    assert found == [(77,)]
    plan = await s.rows(
        f"explain select key_1 from {{chunk}} order by vector <=> %s::{type}(8) limit 10", query
    )
    assert any("chunk_articles_embed_1_hnsw" in line for (line,) in plan)


async def test_built_once(conn):
    s = await scene(conn)
    await fill(s, 1200)
    await s.derivation.sink.finish(conn, s.target)
    oid = await s.rows(
        "select {index}::regclass::oid".replace("{index}", "%s"), s.tables.index.as_string(None)
    )
    await s.derivation.sink.finish(conn, s.target)
    assert oid == await s.rows("select %s::regclass::oid", s.tables.index.as_string(None))


async def wait(s: Scene, count: int) -> None:
    await s.conn.execute("truncate instep.outbox_articles_embed")
    await s.conn.execute(
        "insert into instep.outbox_articles_embed (key_1, target, sort_key) select g, %s, now() from generate_series(1, %s) g",
        (s.target.name, count),
    )


async def test_trickle_does_not_postpone(conn):
    """PEERS extra, pgai#791: while the fill goes on nothing is built, but it need not wait for an empty outbox."""
    s = await scene(conn)
    await fill(s, 1200)
    await wait(s, 500)
    await s.derivation.sink.finish(conn, s.target)
    assert await valid(s) == []
    await wait(s, 100)
    await s.derivation.sink.finish(conn, s.target)
    assert len(await valid(s)) == 1


async def test_dead_letters_do_not_postpone(conn):
    s = await scene(conn)
    await fill(s, 1200)
    await wait(s, 500)
    await conn.execute("update instep.outbox_articles_embed set failed_at = now()")
    assert await vector_index.look(conn, s.tables, s.declaration, s.target) == "due"


async def test_invalid_leftover_is_dropped_first(conn):
    s = await scene(conn)
    await fill(s, 1200)
    await s.derivation.sink.finish(conn, s.target)
    await conn.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass",
        (s.tables.index.as_string(None),),
    )
    (before,) = await s.rows("select %s::regclass::oid", s.tables.index.as_string(None))
    await s.derivation.sink.finish(conn, s.target)
    (after,) = await s.rows("select %s::regclass::oid", s.tables.index.as_string(None))
    assert await valid(s) == [("chunk_articles_embed_1_hnsw", True)]
    assert before != after


async def test_two_processes_at_once(dsn, conn):
    """All come back without an error, one has built, and one valid index stands: two builds at once would end in a
    deadlock when the first is nearly done."""
    s = await scene(conn)
    await fill(s, 3000)
    others = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(6)]
    pairs = list(zip(others[:3], others[3:], strict=True))
    outcomes = await asyncio.gather(
        *(vector_index.build(own, holder, s.tables, s.target) for own, holder in pairs)
    )
    assert outcomes.count("built") == 1
    assert set(outcomes) <= {"built", "busy", "valid"}
    assert await valid(s) == [("chunk_articles_embed_1_hnsw", True)]
    assert await vector_index.build(*pairs[0], s.tables, s.target) == "valid"
    for other in others:
        await other.close()


async def test_another_builder_is_left_alone(dsn, conn):
    """An invalid index may be one that is being built at this moment: it is not dropped under its builder."""
    s = await scene(conn)
    await fill(s, 1200)
    await s.derivation.sink.finish(conn, s.target)
    await conn.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass",
        (s.tables.index.as_string(None),),
    )
    async with (
        await psycopg.AsyncConnection.connect(dsn) as builder,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as holder,
    ):
        await builder.execute(
            f"lock table {s.tables.chunk.as_string(None)} in share update exclusive mode".encode()
        )
        assert await vector_index.build(conn, holder, s.tables, s.target) == "busy"
    assert await valid(s) == [("chunk_articles_embed_1_hnsw", False)]


async def test_settings_of_the_session_are_put_back(conn, dsn):
    s = await scene(conn)
    await fill(s, 1200)
    before = await s.rows("show maintenance_work_mem")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as holder:
        assert await vector_index.build(conn, holder, s.tables, s.target) == "built"
    assert await s.rows("show maintenance_work_mem") == before
