"""An index outside PostgreSQL that is lost, older or newer than the database knows is noticed and made again; one that
a crash left between two commits is not."""

from __future__ import annotations

import shutil

import pytest
from search_scene import SearchScene

from instep.database.transactions import transaction
from instep.engine.ports import Output
from instep.errors import Outage
from instep.search.ports import document
from instep.search.sinks import TantivySink, index_path


async def scene_of(dsn, conn, tmp_path, engine="tantivy"):
    scene = await SearchScene.make(dsn, conn, tmp_path, engine)
    return scene, scene.lexical.sink, scene.targets["articles.search"]


def fresh_sink(scene):
    """As another process would make it."""
    return TantivySink(scene.directory, scene.lexical.declaration, scene.columns, scene.connect)


def outputs(*rows):
    return [Output((id,), b"h", document((id,), text)) for id, text in rows]


async def keys(sink, target):
    return {key async for key in sink.index(target).keys()}  # noqa: SIM118


async def write(conn, sink, target, removed, made):
    async with transaction(conn):  # as the engine does
        await sink.write(conn, target, removed, made)


async def write_and_crash(conn, sink, target):
    async with transaction(conn):
        await sink.write(conn, target, [], outputs((1, "a")))
        raise RuntimeError("crash")


async def test_prepared_twice_is_prepared_once(dsn, conn, tmp_path):
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    assert await sink.intact(conn, target)
    await write(conn, sink, target, [], outputs((1, "a")))
    await sink.finish(conn, target)
    await fresh_sink(scene).prepare(conn, target)
    assert await fresh_sink(scene).intact(conn, target)
    assert await keys(sink, target) == {(1,)}
    assert index_path(tmp_path, scene.lexical.declaration, target).name == f"articles_search_{target.id}"


async def test_a_rolled_back_transaction_leaves_the_index_intact(dsn, conn, tmp_path):
    """The index is ahead of the stamps then: its entries are still there, and are worked again."""
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    with pytest.raises(RuntimeError, match="crash"):
        await write_and_crash(conn, sink, target)
    await sink.finish(conn, target)
    assert await fresh_sink(scene).intact(conn, target)
    await write(conn, sink, target, [], outputs((1, "b")))
    assert await sink.intact(conn, target)


async def test_a_crash_between_announcement_and_commit_leaves_the_index_intact(
    dsn, conn, tmp_path, monkeypatch
):
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    await write(conn, sink, target, [], outputs((1, "a")))

    async def dies(*_):
        raise RuntimeError("crash")

    for _ in range(2):
        monkeypatch.setattr(sink.index(target), "apply", dies)
        with pytest.raises(RuntimeError, match="crash"):
            await write(conn, sink, target, [], outputs((2, "b")))
        monkeypatch.undo()
        assert await fresh_sink(scene).intact(conn, target)
    await write(conn, sink, target, [], outputs((3, "c")))
    assert await sink.intact(conn, target)
    assert await keys(sink, target) == {(1,), (3,)}


@pytest.mark.parametrize("fault", ["lost", "older", "newer", "damaged"])
async def test_a_strange_index_is_made_again_from_nothing(dsn, conn, tmp_path, fault):
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    path, copy = sink.index(target).path, tmp_path / "copy"
    await write(conn, sink, target, [], outputs((1, "a")))
    await sink.finish(conn, target)
    shutil.copytree(path, copy)
    before = await (await conn.execute("select epoch, intended from instep.index_epoch")).fetchone()
    for n in (2, 3, 4):
        await write(conn, sink, target, [], outputs((n, "b")))
    await sink.finish(conn, target)
    if fault in ("lost", "older"):
        shutil.rmtree(path)
    if fault == "older":
        shutil.copytree(copy, path)
    elif fault == "newer":  # the database was restored
        await conn.execute("update instep.index_epoch set epoch = %s, intended = %s", before)
    elif fault == "damaged":
        (path / "meta.json").write_bytes(b"\0")

    unasked = fresh_sink(scene)
    with pytest.raises(Outage, match="was lost or replaced"):
        await write(
            conn, unasked, target, [], outputs((9, "z"))
        )  # the engine was not told: nothing is begun anew
    with pytest.raises(Outage):
        await unasked.probe(target)

    again = fresh_sink(scene)
    await again.prepare(conn, target)
    assert not await again.intact(conn, target)
    assert not await again.intact(conn, target)  # until something is written
    await write(conn, again, target, [], outputs((5, "e")))
    assert await again.intact(conn, target)
    assert await keys(again, target) == {(5,)}  # no orphan of the time before
    await again.finish(conn, target)


async def test_a_probe_may_begin_an_index_that_is_to_be_made_again(dsn, conn, tmp_path):
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    shutil.rmtree(sink.index(target).path)
    again = fresh_sink(scene)
    assert not await again.intact(conn, target)
    await again.probe(target)
    assert await again.intact(conn, target)
    await again.finish(conn, target)


async def test_an_index_with_nothing_to_make_again_becomes_intact(dsn, conn, tmp_path):
    scene, sink, target = await scene_of(dsn, conn, tmp_path)
    shutil.rmtree(sink.index(target).path)
    again = fresh_sink(scene)
    assert not await again.intact(conn, target)
    await again.finish(conn, target)
    assert await again.intact(conn, target)


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
async def test_dropped_leaves_no_trace(dsn, conn, tmp_path, engine):
    _, sink, target = await scene_of(dsn, conn, tmp_path, engine)
    await write(conn, sink, target, [], outputs((1, "a")))
    await sink.drop(conn, target)
    await sink.drop(conn, target)
    assert list(tmp_path.iterdir()) == []
    left = await conn.execute(
        "select (select count(*) from instep.index_epoch) + (select count(*) from pg_class where relname like 'lexical%%')"
    )
    assert await left.fetchone() == (0,)


async def test_the_table_is_written_in_the_transaction_of_the_caller(dsn, conn, tmp_path):
    scene, sink, target = await scene_of(dsn, conn, tmp_path, "postgres")
    assert sink.transactional
    with pytest.raises(RuntimeError, match="crash"):
        await write_and_crash(conn, sink, target)
    assert {key async for key in scene.index.keys()} == set()  # noqa: SIM118
