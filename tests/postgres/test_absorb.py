"""From the change log into the outboxes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import psycopg
import pytest
from finding_scene import KEYS, make
from psycopg import sql

from instep.database.transactions import INDEX_ONLY
from instep.engine.absorb import Absorbed, Absorber
from instep.engine.declared import read_declarations, read_source


async def _installed(conn, **options):
    scene = await make(conn, **options)
    await scene.install()
    return scene


async def test_c1_6_a_change_of_a_waiting_entry_is_one_entry(conn):
    """An update while the first version still waits: one entry for each target, counted up, its wait as old as it was."""
    scene = await _installed(conn)
    await scene.put(1)
    await scene.absorb()
    await conn.execute(
        "update instep.outbox_articles_embed set enqueued_at = '2020-01-01', not_before = now(), "
        "attempts = 2, claims = 3, error_kind = 'error', last_error = 'x'"
    )
    await scene.run("update {table} set body = 'second'")
    await scene.run("update {table} set body = 'third'")
    assert await scene.absorb() == Absorbed(2, {"articles.embed": 1, "articles.search": 1})
    columns = "generation, enqueued_at = '2020-01-01', not_before, attempts, claims, error_kind, last_error"
    assert await scene.entries(columns) == {(1,): (2, True, None, 0, 0, None, None)}


async def test_a_leased_entry_keeps_lease_and_token(conn):
    """The generation tells its holder that it has moved on; nobody else may claim it before."""
    scene = await _installed(conn)
    await scene.put(1)
    await scene.absorb()
    await conn.execute(
        "update instep.outbox_articles_embed set token = 7, lease_until = '2099-01-01', claims = 1"
    )
    await scene.run("update {table} set body = 'second'")
    await scene.absorb()
    assert await scene.entries("generation, token, lease_until = '2099-01-01', claims") == {
        (1,): (2, 7, True, 0)
    }


@pytest.mark.parametrize("discarded", [False, True])
async def test_changed_content_revives_a_dead_letter(conn, discarded):
    scene = await _installed(conn)
    await scene.put(1)
    await scene.absorb()
    await conn.execute(
        "update instep.outbox_articles_embed set enqueued_at = '2020-01-01', failed_at = now(), "
        "failed_hash = 'x', attempts = 3, error_kind = 'error', last_error = 'x'"
    )
    if discarded:
        await conn.execute(
            "update instep.outbox_articles_embed set discarded_at = now(), discard_reason = 'spam'"
        )
    await scene.run("update {table} set body = 'second'")
    await scene.absorb()
    columns = (
        "failed_at, failed_hash, discarded_at, discard_reason, error_kind, last_error, attempts, "
        "enqueued_at > '2020-01-02'"
    )
    assert await scene.entries(columns) == {(1,): (None, None, None, None, None, None, 0, True)}


async def test_the_sort_key_is_the_sources_and_removals_are_prompt(conn):
    scene = await _installed(
        conn,
        columns="body text, published boolean default true, at timestamptz, note text",
        watch=[("body", "published", "at")],
        newest="at",
    )
    await scene.run("insert into {table} (id_1, at) values (1, '2020-02-02'), (2, null), (3, '2021-01-01')")
    await scene.run(
        "insert into {table} (id_1, published, at) values (4, false, '2020-02-02'), (5, null, '2020-02-02')"
    )
    await scene.run("delete from {table} where id_1 = 3")
    await scene.absorb()
    columns = "sort_key = '-infinity', sort_key = '2020-02-02', sort_key > now() - interval '1 minute'"
    assert await scene.entries(columns) == {
        (1,): (False, True, False),
        (2,): (True, False, False),
        (3,): (False, False, True),
        (4,): (False, False, True),
        (5,): (False, False, True),
    }


async def test_every_target_in_use_gets_an_entry_and_a_retired_one_none(conn):
    scene = await _installed(conn)
    await conn.execute(
        "insert into instep.target (derivation, source, bit, target, state) values "
        "('articles.embed', 'articles', 1, 't2', 'filling'), ('articles.embed', 'articles', 1, 't3', 'kept'), "
        "('articles.embed', 'articles', 1, 't4', 'retired')"
    )
    await scene.put(1)
    assert (await scene.absorb()).enqueued == {"articles.embed": 3, "articles.search": 1}
    rows = await scene.run("select target from instep.outbox_articles_embed order by 1")
    assert rows == [("t1",), ("t2",), ("t3",)]


async def test_a_target_that_is_being_retired_is_waited_for(conn, dsn):
    """Retire holds its row FOR UPDATE: an absorb that began before it ended sees it as retired, not as it was."""
    scene = await _installed(conn)
    await scene.put(1)
    async with await psycopg.AsyncConnection.connect(dsn) as retiring:
        await retiring.execute("select 1 from instep.target where derivation = 'articles.embed' for update")
        task = asyncio.create_task(scene.absorb())
        await asyncio.sleep(0.3)
        assert not task.done()
        await retiring.execute(
            "update instep.target set state = 'retired' where derivation = 'articles.embed'"
        )
        await retiring.commit()
        assert (await task).enqueued == {"articles.embed": 0, "articles.search": 1}


@pytest.mark.parametrize("key", KEYS)
async def test_pieces_are_bounded_and_nothing_is_taken_twice(conn, dsn, key):
    """Two workers side by side: each log row is taken once, each key has one entry."""
    scene = await _installed(conn, key=key)
    await scene.put(*range(40))
    await scene.put(*range(40, 50))
    assert (await Absorber(scene.source, scene.declarations).absorb(conn, 7)).taken == 7
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        taken = await asyncio.gather(
            Absorber(scene.source, scene.declarations).drain(conn, 3),
            Absorber(scene.source, scene.declarations).drain(other, 3),
        )
    assert sum(piece.taken for piece in taken) == 43
    assert await scene.entries("generation") == {scene.key(i): (1,) for i in range(50)}


async def test_a_late_committer_is_found(conn, dsn):
    """Its log row has a number below the cursor: a piece that comes back empty looks from the start again."""
    scene = await _installed(conn)
    absorber = Absorber(scene.source, scene.declarations)
    async with await psycopg.AsyncConnection.connect(dsn) as late:
        await late.execute("insert into articles (id_1, body) values (1, 'late')")
        await scene.put(2, 3)
        assert (await absorber.drain(conn)).taken == 2
        assert (await absorber.absorb(conn)).taken == 0
        await late.commit()
    assert (await absorber.absorb(conn)).taken == 1


async def test_a_late_committer_is_found_in_a_steady_stream(conn, dsn):
    """Pieces that never come back empty: the log is read from its start every few pieces."""
    scene = await _installed(conn)
    absorber = Absorber(scene.source, scene.declarations)
    async with await psycopg.AsyncConnection.connect(dsn) as late:
        await late.execute("insert into articles (id_1, body) values (0, 'late')")
        for i in range(1, 5):
            await scene.put(i)
            await absorber.absorb(conn, 1)
        await late.commit()
    for i in range(5, 25):
        await scene.put(i)
        assert (await absorber.absorb(conn, 1)).taken == 1
    assert (0,) in await scene.entries("target")


@pytest.mark.parametrize("statistics", ["fresh", "stale", "missing"])
@pytest.mark.parametrize("form", ["generic", "custom"])
async def test_the_plan_reads_no_table_as_a_whole(conn, statistics, form):
    """The cost grows with what changed: no scan of source, log or outbox, in both forms of plan."""
    scene = await _installed(conn, newest="now()::date")
    if statistics == "stale":
        await conn.execute("analyze")
    await conn.execute("alter table articles set (autovacuum_enabled = off)")
    await conn.execute("alter table instep.change_articles set (autovacuum_enabled = off)")
    await scene.run("insert into {table} (id_1, body) select i, 'x' from generate_series(1, 20000) as i")
    if statistics == "fresh":
        await conn.execute("analyze")
    absorber = Absorber(scene.source, scene.declarations)
    async with conn.transaction():
        for setting in INDEX_ONLY:
            await conn.execute(f"set local {setting}")
        await conn.execute(f"set local plan_cache_mode = force_{form}_plan")
        text = absorber._statement.decode() % {"source": "$1", "cursor": "$2", "limit": "$3"}
        await conn.execute(f"prepare piece (text, bigint, bigint) as {text}")
        explain = "explain (analyze, costs off, timing off, summary off) execute piece ('articles', 0, 100)"
        plan = "\n".join(row[0] for row in await (await conn.execute(explain)).fetchall())
    for table in ("articles", "change_articles", "outbox_articles_embed"):
        assert f"Seq Scan on {table}" not in plan
    assert "Bitmap" not in plan
    read = [float(rows) for rows in re.findall(r"(?:rows=|Rows Removed by Filter: )([0-9.]+)", plan)]
    assert max(read) == 100, plan


async def test_a_row_that_cannot_be_read_holds_no_other_up(conn):
    """An expression of the user's that fails on one row: the piece is absorbed without it; load will tell."""
    scene = await _installed(conn, eligible="10 / place > 0")
    await scene.run("insert into {table} (id_1, place) values (1, 5), (2, 0), (3, 20)")
    assert (await scene.absorb()).taken == 3
    assert set(await scene.entries("target")) == {(1,), (2,), (3,)}


async def test_read_committed_whatever_the_database_says(conn):
    """A database default of REPEATABLE READ would fail an absorb that meets another."""
    scene = await _installed(conn)
    await conn.execute("set default_transaction_isolation = 'repeatable read'")
    await scene.put(1)
    assert (await scene.absorb()).taken == 1


async def test_declarations_come_back_from_their_rows(conn):
    """What is absorbed with is what was installed: a worker knows a derivation from the database alone."""
    scene = await _installed(conn, key="composite", shape="quoted", newest="now()")
    source = await read_source(conn, "articles")
    assert source == scene.source
    assert await read_declarations(conn, source) == list(scene.declarations)
    await conn.execute(sql.SQL("alter table {} rename to renamed").format(scene.table))
    assert await read_source(conn, "articles") == replace(scene.source, table="renamed")
