"""The chunk tables after a write hold exactly what the outputs say, and nothing was rewritten without need."""

from __future__ import annotations

import asyncio

import numpy as np
import psycopg
import pytest
from embedding_scene import Scene, scene
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instep.chunks.entity_chunks import EntityChunks
from instep.engine.declaration import KeyColumn, Target
from instep.engine.ports import Output
from instep.errors import Refused, Retryable


def vector_of(digest: bytes, dimensions: int = 8) -> np.ndarray:
    return np.frombuffer(digest[:1] * dimensions, dtype=np.uint8).astype(np.float32) + 1


def output(key, layout, reused=()):
    """`layout`: small numbers, each a text; `reused`: those that were not computed."""
    digests = {n: bytes([n]) * 32 for n in layout}
    fresh = {digests[n]: f"text {n}" for n in dict.fromkeys(layout) if n not in reused}
    vectors = np.array([vector_of(d) for d in fresh], dtype=np.float32).reshape(len(fresh), 8)
    starts = tuple(range(0, 10 * len(layout), 10))
    whole = len(layout) == 1
    chunks = EntityChunks(
        tuple(digests[n] for n in layout),
        starts,
        tuple(s + 6 for s in starts),
        fresh,
        vectors,
        range(len(fresh)),
        whole,
    )
    return Output(key, b"h", chunks)


async def held(s: Scene):
    chunks = await s.rows("select key_1, text_hash, text, vector::text from {chunk}")
    layouts = await s.rows("select key_1, text_hashes, starts, ends from {layout}")
    for _, digest, text, vector in chunks:
        assert text == f"text {digest[0]}"
        assert vector == "[" + ",".join(f"{x:g}" for x in vector_of(digest)) + "]"
    rows = {}
    for key, digest, _, _ in chunks:
        rows.setdefault(key, set()).add(digest[0])
    order = {}
    for key, hashes, starts, ends in layouts:
        order[key] = [h[0] for h in hashes]
        assert starts == list(range(0, 10 * len(hashes), 10))
        assert ends == [x + 6 for x in starts]
        assert len(hashes) > 1  # one chunk that is the whole text needs no layout
    order |= {key: list(digests) for key, digests in rows.items() if key not in order and len(digests) == 1}
    assert rows == {key: set(layout) for key, layout in order.items()}
    return order


async def test_difference_against_a_model(dsn):
    """Random waves of outputs and removals against a dict: what the tables hold is what was written last, every
    text once, and a row of a chunk that stays is the very same row."""
    conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    s = await scene(conn)
    loop = asyncio.get_running_loop()
    entity = st.integers(1, 6)
    layout = st.lists(st.integers(0, 5), max_size=6)
    wave = st.tuples(st.dictionaries(entity, layout, max_size=6), st.sets(entity))

    async def check(waves):
        await s.do("truncate {chunk}, {layout}")
        model = {}
        for outputs, removed in waves:
            removed = removed - outputs.keys()
            before = dict(await s.rows("select (key_1, text_hash)::text, ctid::text from {chunk}"))
            await s.write([output((k,), v) for k, v in outputs.items()], [(k,) for k in removed])
            model = {k: v for k, v in {**model, **outputs}.items() if k not in removed and v}
            assert await held(s) == model
            after = dict(await s.rows("select (key_1, text_hash)::text, ctid::text from {chunk}"))
            assert all(after[row] == place for row, place in before.items() if row in after)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(wave, min_size=1, max_size=5))
    def explore(waves):
        asyncio.run_coroutine_threadsafe(check(waves), loop).result()

    await asyncio.to_thread(explore)
    await conn.close()


async def test_written_twice_is_written_once(conn):
    s = await scene(conn)
    for _ in range(2):
        await s.write([output((1,), [1, 2, 1])])
    assert await held(s) == {1: [1, 2, 1]}


async def test_unchanged_layout_is_not_rewritten(conn):
    s = await scene(conn)
    await s.write([output((1,), [1, 2])])
    before = await s.rows("select ctid, xmin from {layout}")
    await s.write([output((1,), [1, 2])])
    assert await s.rows("select ctid, xmin from {layout}") == before


async def test_reused_chunk_that_is_gone(conn):
    """Never a hole: what was to be reused and is not there is to be computed again, and nothing is written."""
    s = await scene(conn)
    await s.write([output((1,), [1, 2])])
    await s.do("delete from {chunk} where text = 'text 2'")
    with pytest.raises(Retryable, match=r"1 chunks of articles\.embed 1 were to be reused"):
        await s.write([output((1,), [1, 2, 3], reused={1, 2})])
    assert await s.rows("select text from {chunk}") == [("text 1",)]
    await s.write([output((1,), [1, 2, 3], reused={1})])
    assert await held(s) == {1: [1, 2, 3]}


async def test_orphans_go_without_a_layout(conn):
    """The old set is read from the chunk rows: what a lost layout no longer names is deleted all the same."""
    s = await scene(conn)
    await s.write([output((1,), [1, 2]), output((2,), [3])])
    await s.do("truncate {layout}")
    await s.write([output((1,), [2])], [(2,)])
    assert await held(s) == {1: [2]}


async def test_round_trips_do_not_depend_on_entities(conn, monkeypatch):
    s = await scene(conn)

    async def statements(count):
        seen = []
        execute, send = psycopg.AsyncCursor.execute, psycopg.AsyncCursor.copy
        monkeypatch.setattr(
            psycopg.AsyncCursor, "execute", lambda self, *a, **k: seen.append(a[0]) or execute(self, *a, **k)
        )
        monkeypatch.setattr(
            psycopg.AsyncCursor, "copy", lambda self, *a, **k: seen.append(a[0]) or send(self, *a, **k)
        )
        await s.derivation.sink.write(
            conn, s.target, [(-k,) for k in range(1, count)], [output((k,), [2, 1]) for k in range(count)]
        )
        monkeypatch.undo()
        return len(seen)

    assert await statements(1) == await statements(300) == 3
    await s.write([output((k,), [3, 4]) for k in range(300)])
    assert await statements(300) == 5


async def test_text_that_needs_care(conn):
    """Binary COPY takes the text as it is: separators, backslashes, NULL's spelling, empty keys."""
    key = (KeyColumn("a", "character varying(30)"), KeyColumn("b", "smallint"))
    s = await scene(conn, key=key)
    odd = "tab\t newline\n \\N \\. {} 'quote' ''"
    chunks = EntityChunks(
        (b"\0" * 32,), (0,), (3,), {b"\0" * 32: odd}, np.ones((1, 8), dtype=np.float32), (0,)
    )
    await s.write([Output(("", -5), b"h", chunks), Output((odd[:30], 5), b"h", chunks)])
    assert await s.rows("select key_1, key_2, text from {chunk} order by key_2") == [
        ("", -5, odd),
        (odd[:30], 5, odd),
    ]


async def test_key_type_of_no_known_form_is_refused(conn):
    with pytest.raises(Refused, match="key column d is of type date"):
        await scene(conn, key=(KeyColumn("d", "date"),))


async def test_vectors_stand_in_their_rows_where_they_fit(conn):
    s = await scene(conn)
    assert await storage(s) == {"vector": "p", "text": "m"}
    large = Target(2, "articles.embed", "large", "filling", {**s.target.spec, "dimensions": 2000})
    await s.derivation.sink.prepare(conn, large)
    await s.derivation.sink.prepare(conn, large)  # safe to call again
    s.target = large
    assert await storage(s) == {"vector": "e", "text": "x"}


async def storage(s: Scene):
    return dict(
        await s.rows(
            "select attname, attstorage::text from pg_attribute where attrelid = %s::regclass and attname in ('vector', 'text')",
            s.tables.chunk.as_string(None),
        )
    )


async def test_drop_leaves_nothing(conn):
    s = await scene(conn)
    await s.write([output((1,), [1])])
    for _ in range(2):
        await s.derivation.sink.drop(conn, s.target)
    left = await s.rows("select relname from pg_class where relname ~ '^(chunk|layout)_'")
    assert left == []


async def test_no_pgvector_is_refused(conn):
    await conn.execute("drop extension vector")
    with pytest.raises(Refused, match="no pgvector"):
        await scene(conn)


async def test_pgvector_in_another_schema(conn):
    """Types and operators are named with their schema: it need not be on the search path."""
    await conn.execute("create schema extensions; alter extension vector set schema extensions")
    s = await scene(conn)
    await s.write([output((1,), [1])])
    assert await s.rows("select count(*) from {chunk}") == [(1,)]
