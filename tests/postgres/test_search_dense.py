"""Nearest rows: recall with a real HNSW index under filters of every width, one hit for each row, both vector types."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import psycopg
import pytest
from search_scene import SearchScene

from instep.chunks.vector_index import build
from instep.errors import Configuration, Permanent
from instep.search import dense
from instep.search.filter_syntax import parse_filter

ROWS, DIMENSIONS, QUERIES = 20_000, 16, 15


async def filled(dsn, conn, tmp_path, rows=ROWS, type="vector"):
    """Rows in clusters, one chunk each; rare: 1 of 100; far: the half that is farthest from the first centre."""
    scene = await SearchScene.make(dsn, conn, tmp_path, type=type, dimensions=DIMENSIONS)
    random = np.random.default_rng(7)
    centres = random.standard_normal((50, DIMENSIONS)).astype(np.float32)
    vectors = centres[np.arange(rows) % 50] + 0.6 * random.standard_normal((rows, DIMENSIONS)).astype(
        np.float32
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    await conn.execute(
        "insert into articles (id, title, section, published) select n, 'text ' || n,"
        " case when n %% 100 = 17 then 'rare' else 'usual' end, n %% 2 = 0 from generate_series(0, %s) n",
        (rows - 1,),
    )
    chunk = scene.chunks.chunk.as_string()
    async with conn.cursor().copy(
        f"copy {chunk} (key_1, text_hash, text, vector) from stdin".encode()
    ) as copy:
        for n, vector in enumerate(vectors.tolist()):
            text = f"text {n}"
            await copy.write_row((n, hashlib.sha256(text.encode()).digest(), text, str(vector)))
    declaration = scene.embed.declaration
    await conn.execute(
        f"insert into {declaration.stamp.as_string()} (key_1, target, content_hash)"
        f" select id, 'counting-chunked-v1', {declaration.hash} from articles".encode()
    )
    await conn.execute("analyze")
    queries = centres[np.arange(QUERIES)] + 0.6 * random.standard_normal((QUERIES, DIMENSIONS)).astype(
        np.float32
    )
    return scene, vectors, queries / np.linalg.norm(queries, axis=1, keepdims=True)


def exact(vectors, query, kept, wanted=10):
    order = np.argsort(-(vectors @ query), kind="stable")
    return {int(n) for n in order[np.isin(order, list(kept))][:wanted]}


async def recall(scene, vectors, queries, where=""):
    filter = parse_filter(where, scene.columns) if where else None
    kept = await scene.ids(where or "true")
    found = 0
    for query in queries:
        leg = await dense.nearest_rows(scene.conn, scene.searchable().dense, str(query.tolist()), filter, 10)
        assert [c.score for c in leg.candidates] == sorted((c.score for c in leg.candidates), reverse=True)
        assert len(leg.candidates) == 10
        keys = {c.key[0] for c in leg.candidates}
        assert keys <= kept
        found += len(keys & exact(vectors, query, kept))
    return found / (10 * len(queries))


async def test_recall_with_the_index_and_under_filters(dsn, conn, tmp_path, monkeypatch):
    scene, vectors, queries = await filled(dsn, conn, tmp_path)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as holder:
        assert await build(conn, holder, scene.chunks, scene.targets["articles.embed"]) == "built"
    assert await recall(scene, vectors, queries) >= 0.95
    search = dense._Nearest(conn, scene.searchable().dense, str(queries[0].tolist()), None)
    plan = await (
        await conn.execute(b"explain " + search._sql["nearest"], {**search._parameters, "limit": 20})
    ).fetchall()
    assert scene.chunks.index_name in str(plan)
    assert await recall(scene, vectors, queries, "section = 'rare'") >= 0.95
    assert await recall(scene, vectors, queries, "published") >= 0.95
    monkeypatch.setattr(dense, "EXACT_ROWS", 0)  # the walk, also where the exact answer would be chosen
    assert await recall(scene, vectors, queries, "section = 'rare'") >= 0.95
    # Rows that no walk of this length meets: the exact answer takes its place.
    monkeypatch.setattr(dense, "_MAX_SCAN_TUPLES", 1)
    monkeypatch.setattr(dense, "_EF_SEARCH", 10)
    monkeypatch.setattr(dense, "_MAX_EF_SEARCH", 10)
    assert await recall(scene, vectors, queries[:5], "section = 'rare'") >= 0.95


@pytest.mark.parametrize("type", ["vector", "halfvec"])
async def test_without_an_index_the_answer_is_exact(dsn, conn, tmp_path, type):
    scene, vectors, queries = await filled(dsn, conn, tmp_path, 1500, type)
    least = 1 if type == "vector" else 0.98
    assert await recall(scene, vectors, queries[:5]) >= least
    assert await recall(scene, vectors, queries[:5], "section = 'rare' or published") >= least


async def test_the_best_chunk_of_a_row_counts_once(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    paragraphs = [f"paragraph {n} " * 12 for n in range(30)]
    keys = [await scene.insert(1, "long", "\n\n".join(p.strip() for p in paragraphs))]
    keys += [await scene.insert(n, f"short {n}") for n in range(2, 12)]
    await scene.work(*keys)
    answer = await scene.search(paragraphs[20].strip(), "dense", limit=11)
    assert [r.key for r in answer.results].count((1,)) == 1
    assert len(answer.results) == 11
    best = answer.results[0]
    assert best.key == (1,)
    assert best.score == pytest.approx(1, abs=1e-5)
    assert best.legs == {"dense": 1}
    assert "paragraph 20" in best.text
    assert best.chunk.end - best.chunk.start == len(paragraphs[20].strip())


async def test_a_query_that_the_model_refuses_and_a_model_that_does_not_fit(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    await scene.work(await scene.insert(1, "a"))
    with pytest.raises(Permanent, match="server answered 400"):
        await scene.search("poison", "dense")
    scene.model.size = 9
    with pytest.raises(Configuration, match=r"9 dimensions, target .* has 8"):
        await scene.search("a", "dense")


async def test_the_query_prefix_and_the_schema_of_pgvector(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    await scene.work(await scene.insert(1, "a"))
    leg = replace(scene.searchable().dense, query_prefix="query: ", vector_schema="public")
    vector = await dense.query_vector(leg, "a")
    assert scene.model.sent[-1] == "query: a"
    assert [c.key for c in (await dense.nearest_rows(conn, leg, vector, None, 5)).candidates] == [(1,)]
