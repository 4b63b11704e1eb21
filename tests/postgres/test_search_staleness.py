"""After an update or delete the old words are not found, before and after the run; what is still true is."""

from __future__ import annotations

import uuid

import pytest
from search_scene import SearchScene

ENGINES = pytest.mark.parametrize("engine", ["tantivy", "postgres"])


def marker() -> str:
    return "m" + uuid.uuid4().hex[:14]


@ENGINES
async def test_marker_words_come_and_go_with_their_rows(dsn, conn, tmp_path, engine):
    scene = await SearchScene.make(dsn, conn, tmp_path, engine)
    words = [marker() for _ in range(20)]
    keys = [await scene.insert(n, f"title {word}", "shared body") for n, word in enumerate(words)]
    assert await scene.found(words[3]) == []
    await scene.work(*keys)
    for n, word in enumerate(words):
        assert await scene.found(word) == [n]

    new = marker()
    await scene.do("update articles set title = %s where id = 3", new)
    await scene.do("delete from articles where id = 4")
    await scene.do('update articles set "open" = false where id = 5')
    for run in ("before", "after"):
        for gone in (3, 4, 5):
            answer = await scene.search(words[gone])
            assert answer.results == [], run
            assert answer.stale == (1 if run == "before" else 0)
        assert set(await scene.found("shared", limit=50)) == set(range(20)) - {4, 5}, run
        await scene.work(*keys)
    assert await scene.found(new) == [3]


@ENGINES
async def test_a_stale_row_is_judged_by_its_current_text(dsn, conn, tmp_path, engine):
    scene = await SearchScene.make(dsn, conn, tmp_path, engine)
    await scene.work(await scene.insert(1, "red apricot", section="games"))
    await scene.do("update articles set title = 'blue apricot, ripe' where id = 1")
    (result,) = (await scene.search("apricot")).results
    assert result.text == "blue apricot, ripe"  # the snippet is of the row as it is
    assert [result.text[a:b] for a, b in result.highlights] == ["apricot"]
    assert await scene.found("red apricot") == [1]  # falls back to any word: apricot is still there
    assert await scene.found("red") == []
    # A filter is asked of the row as it is, whatever the index holds.
    await scene.do("update articles set section = 'net' where id = 1")
    assert await scene.found("apricot", where="section = 'games'") == []


@ENGINES
async def test_a_page_is_not_short_because_many_rows_are_dead(dsn, conn, tmp_path, engine):
    scene = await SearchScene.make(dsn, conn, tmp_path, engine)
    await conn.execute("insert into articles (id, title) select n, 'common' from generate_series(1, 1500) n")
    # Those that live match worse: their texts are longer, so they come last.
    await conn.execute("update articles set title = 'common ' || repeat('other ', 40) where id > 1480")
    await scene.work(*((n,) for n in range(1, 1501)), only="articles.search")
    await conn.execute("delete from articles where id <= 1480")
    answer = await scene.search("common", limit=10)
    assert len(answer.results) == 10
    assert all(result.key[0] > 1480 for result in answer.results)
    assert answer.stale >= 1480


async def test_dense_hits_of_stale_rows_stay_only_where_the_chunk_does(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    keep, gone = "the paragraph that stays " * 8, "the paragraph that goes " * 8
    key = await scene.insert(1, "title", f"{keep.strip()}\n\n{gone.strip()}")
    await scene.work(key, await scene.insert(2, "something else"))
    (result, *_) = (await scene.search(gone, "dense")).results
    assert result.key == key
    assert result.score == pytest.approx(1, abs=1e-5)
    assert result.chunk.start > 0
    await scene.do("update articles set body = %s where id = 1", f"new words on top\n\n{keep.strip()}")
    (result, *_) = (await scene.search(keep, "dense")).results
    assert result.key == key
    assert result.score == pytest.approx(1, abs=1e-5)
    body = f"title\n\nnew words on top\n\n{keep.strip()}"
    assert (
        body[result.chunk.start : result.chunk.end] == keep.strip()
    )  # where it stands now, not where it stood
    assert result.chunk.ordinal is None
    assert "stays" in result.text
    for answer in [await scene.search(gone, "dense"), await scene.search(gone, "hybrid")]:
        assert all("goes" not in result.text for result in answer.results)
        assert all(
            result.score < 0.99
            for result in answer.results
            if "dense" in result.legs and len(answer.legs) == 1
        )
    await scene.do("delete from articles where id = 1")
    assert await scene.found(keep, "dense") == [2]


async def test_a_row_without_a_stamp_is_judged_by_its_text(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    await scene.work(await scene.insert(1, "apricot"))
    await scene.do("delete from instep.stamp_articles_search")
    assert await scene.found("apricot") == [1]
    await scene.do("update articles set title = 'banana'")
    assert await scene.found("apricot") == []
