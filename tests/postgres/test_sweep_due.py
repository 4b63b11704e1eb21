"""When a complete sweep is due, and what makes one count."""

from __future__ import annotations

import psycopg
from finding_scene import fields, make, swept

from instep.engine import sweep
from instep.engine.sweep import Sweeper, due, make_due


async def test_when_a_sweep_is_due(conn):
    """At install; each call for a small table, else by the interval; after a marker; when asked for."""
    scene = await make(conn)
    await scene.install()
    assert "installed" in (await due(conn, scene.embed) or "") or "target" in (
        await due(conn, scene.embed) or ""
    )
    await scene.sweep()
    assert await due(conn, scene.embed) == "small table"
    assert await due(conn, scene.embed, sweep_every=60) is None
    assert (
        await due(conn, scene.declarations[1], sweep_every=60) is not None
    )  # its own sweep has not come yet
    await conn.execute(
        "update instep.derivation set swept_at = now() - interval '61 s' where name = 'articles.embed'"
    )
    assert "ago" in (await due(conn, scene.embed, sweep_every=60) or "")
    await scene.put(1)
    await conn.execute("update pg_class set reltuples = 300000, relpages = 1 where relname = 'articles'")
    assert await due(conn, scene.embed) is None
    await conn.execute(
        "update instep.derivation set swept_at = now() - interval '6 h' where name = 'articles.embed'"
    )
    assert "6.0 h ago" in (await due(conn, scene.embed) or "")
    await scene.sweep()
    await conn.execute("truncate articles")
    assert "no keys" in (await due(conn, scene.embed, sweep_every=60) or "")
    await scene.sweep()
    assert await due(conn, scene.embed, sweep_every=60) is None
    await make_due(conn, "restore", derivation="articles.embed")
    assert (await due(conn, scene.embed, sweep_every=60) or "").startswith("restore at ")


async def test_markers_stay_until_all_derivations_have_passed_them(conn):
    scene = await swept(conn, 1)
    await scene.sweep(scene.declarations[1])
    await conn.execute("truncate articles")
    await scene.sweep()
    assert len(await scene.run("select * from instep.marker")) == 1
    assert await due(conn, scene.embed, sweep_every=60) is None
    await scene.sweep(scene.declarations[1])
    assert await scene.run("select * from instep.marker") == []


async def test_a_marker_on_its_way_is_not_passed(conn, dsn):
    """Its number is drawn, its transaction not committed: a sweep that sees a higher one must not pass it, for it
    does not see what that transaction did."""
    scene = await swept(conn, 2)
    await conn.execute(
        "alter table articles rename body to words"
    )  # capture has trouble with each update now
    words = {**fields(scene.embed), "hash": "sha256(words::bytea)"}
    scene.declarations = (sweep.Declaration(**words),)
    await scene.sweep()
    await scene.work()
    async with await psycopg.AsyncConnection.connect(dsn) as slow:
        await slow.execute("update articles set words = 'uncaptured' where id_1 = 1")
        await conn.execute("update articles set words = 'uncaptured' where id_1 = 2")
        assert (await scene.sweep()).enqueued == 1
        await scene.work()
        await slow.commit()
    assert "no keys" in (await due(conn, scene.embed, sweep_every=60) or "")
    assert (await scene.sweep()).enqueued == 1
    await scene.work()
    assert await scene.in_step_of(scene.embed)
    assert await due(conn, scene.embed, sweep_every=60) is None


async def test_a_reason_that_comes_during_a_sweep_is_not_cleared(conn):
    scene = await swept(conn, 10)
    await make_due(conn, "trigger repaired", source="articles")
    async for _ in Sweeper(scene.embed, scene.targets, 3).pieces(conn):
        await make_due(conn, "trigger repaired", source="articles")  # the same words, at another moment
    assert (await due(conn, scene.embed, sweep_every=60) or "").startswith("trigger repaired at")
    await scene.sweep()
    assert await due(conn, scene.embed, sweep_every=60) is None


async def test_a_sweep_that_is_not_finished_does_not_count(conn):
    scene = await swept(conn, 10)
    await make_due(conn, "restore", source="articles")
    async for _ in Sweeper(scene.embed, scene.targets, 3).pieces(conn):
        break
    assert await due(conn, scene.embed, sweep_every=60) is not None
