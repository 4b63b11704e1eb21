"""Public bug reports of peers (PEERS.md, sections C1, C4 and C7): the case's number is in the test's name.

Those that belong to one room stand with that room (test_capture, test_absorb, test_failure_table, test_run); here are
those that need the whole path.
"""

import asyncio
import uuid

import psycopg
import pytest
from app_scene import DIMENSIONS, added, found, opened, ran
from embedding_world import EmbeddingWorld
from world import World

from instep.clock import SYSTEM
from instep.engine.stopping import Stop
from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder


@pytest.fixture
async def server():
    async with ModelServer("tei", dimensions=DIMENSIONS) as running:
        yield running


@pytest.fixture
async def app(dsn, server, tmp_path):
    async with opened(dsn, server, tmp_path) as app:
        yield app


async def test_markers_are_found_and_old_words_are_not(app, conn):
    """Written by plain SQL; found after a run; after an update or a delete the old words are not found, before and
    after the run."""
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    markers = [f"marker{uuid.uuid4().hex}" for _ in range(30)]
    for number, marker in enumerate(markers):
        await conn.execute(
            "insert into notes values (%s, %s)", (number, f"a note about {marker} and other things")
        )
    await ran(app)
    for number, marker in enumerate(markers):
        assert await found(app, "notes", marker) == [number]
    await conn.execute("update notes set body = 'rewritten' where id = 3")
    await conn.execute("delete from notes where id = 4")
    for _ in range(2):
        assert await found(app, "notes", markers[3]) == []
        assert await found(app, "notes", markers[4]) == []
        assert 4 not in await found(app, "notes", markers[4], mode="hybrid")
        await ran(app)
    assert await found(app, "notes", "rewritten") == [3]


async def test_c1_2_a_filter_column_that_changes_while_the_text_is_embedded(app, conn, server):
    await conn.execute(
        "create table notes (id bigint primary key, body text, archived boolean default false)"
    )
    await added(app, "notes", "body", filters=("archived",))
    await conn.execute("insert into notes values (1, 'apple')")
    server.hold()
    running = asyncio.create_task(ran(app))
    await server.arrived(1)
    await conn.execute("update notes set archived = true")
    server.release()
    await running
    requests = server.requests
    await ran(app)
    assert server.requests == requests
    assert await found(app, "notes", "apple", where="not archived") == []
    assert await found(app, "notes", "apple", where="archived") == [1]


async def test_c1_7_many_chunks_of_one_row_and_a_second_run_that_does_nothing(app, conn, server):
    await conn.execute("create table notes (id bigint primary key, body text)")
    body = "\n\n".join(f"paragraph {i}: " + " ".join(f"word{i}x{j}" for j in range(60)) for i in range(250))
    await conn.execute("insert into notes values (1, %s), (2, %s)", (body, body + " end"))
    await added(app, "notes", "body")
    await ran(app)
    chunks = "select count(*), count(distinct xmin::text) from instep.notes_chunks v, lateral (select 1) x"
    count = (await (await conn.execute("select count(*) from instep.notes_chunks")).fetchone())[0]
    assert count >= 500, chunks
    requests = server.requests
    await conn.execute("update instep.derivation set sweep_due = 'again'")
    report = (await ran(app))["notes.embed"]
    assert (server.requests, report.counters.indexed, report.counters.removed) == (requests, 0, 0)
    assert (await (await conn.execute("select count(*) from instep.notes_chunks")).fetchone())[0] == count


async def test_c1_9_a_sweep_that_cannot_read_the_source_deletes_nothing(dsn, conn):
    world = await World.make(dsn, conn, rows=20)
    await world.run()
    await conn.execute("update instep.derivation set sweep_due = 'again'")
    await conn.execute("alter table articles rename column title to headline")
    report = await world.run()
    assert report.configuration
    assert len(await world.outputs()) == 20
    await conn.execute("alter table articles rename column headline to title")
    report = await world.run()
    assert (report.exit_code, await world.in_step()) == (0, True)


async def test_c1_14_a_lost_output_is_found_by_comparing_not_by_presence(dsn, conn):
    """An old output under a right-looking queue: the stamp says which content it was made from."""
    world = await World.make(dsn, conn, rows=5)
    await world.run()
    await conn.execute("update instep.stamp_articles_embed set content_hash = 'old' where key_1 = 3")
    await conn.execute("update instep.toy set shout = 'OLD' where key_1 = 3")
    await world.run()
    assert await world.in_step()


async def test_c1_15_a_delete_that_failed_once_is_a_delete_when_it_is_tried_again(dsn, conn):
    world = await World.make(dsn, conn, rows=3)
    await world.run()
    await conn.execute("delete from articles where id = 2")

    def fail(_):
        world.derivation.faults.on_write = None
        raise psycopg.errors.CheckViolation("once")

    world.derivation.faults.on_write = fail
    await world.run()
    await conn.execute("update instep.outbox_articles_embed set not_before = null")
    await world.run()
    assert set(await world.outputs()) == {1, 3}


async def test_c4_48_two_due_retries_of_one_key_are_one_entry(dsn, conn):
    world = await World.make(dsn, conn, rows=1)
    await world.absorb()
    for _ in range(2):
        await conn.execute("update instep.outbox_articles_embed set not_before = now() - interval '1 s'")
        await conn.execute("update articles set title = title || '!'")
        await world.absorb()
        await world.outbox().let_in(conn)
    assert len(await world.entries()) == 1
    assert len(await world.outbox().claim(conn, 10, 1)) == 1


async def test_c4_49_twelve_workers_on_one_key_and_no_violation(dsn, conn):
    world = await World.make(dsn, conn, rows=1)
    conns = [await world.dedicated() for _ in range(12)]

    async def write_and_work(number: int) -> None:
        own = conns[number]
        for i in range(25):
            await own.execute("update articles set title = %s where id = 1", (f"{number} {i}",))
            outbox = world.outbox()
            await world_absorb(world, own)
            token = number * 1000 + i + 1
            for entry in await outbox.claim(own, 5, token):
                await outbox.release(own, token, [entry.key])

    await asyncio.gather(*(write_and_work(number) for number in range(12)))
    for one in conns:
        await one.close()
    await world.run()
    assert await world.in_step()


async def world_absorb(world: World, conn) -> None:
    from instep.engine import declared
    from instep.engine.absorb import Absorber

    await Absorber(world.source, await declared.read_declarations(conn, world.source)).drain(conn)


async def test_c7_76_a_server_that_counts_tokens_otherwise(dsn, conn, server):
    """Requests over its limit are split; one text over it is cut, counted, and not a dead letter."""
    world = await EmbeddingWorld.make(dsn, conn, server)
    server.faults.max_tokens = 60
    await world.insert(40)
    await conn.execute("update articles set title = repeat('long ', 190) where id = 7")
    report = await world.run()
    await world.embedder.close()
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (40, 0, 0)
    assert report.counters.truncated == 1


async def test_c7_77_throttling_costs_no_attempt(dsn, conn, server):
    """429 with Retry-After: waited for, no attempt counted, everything done in the end."""
    world = await EmbeddingWorld.make(dsn, conn, server, batch=10)
    server.faults.statuses = [429, 200, 429, 429, 200, 429]
    server.faults.retry_after = "1"
    await world.insert(40)
    report = await world.run()
    await world.embedder.close()
    assert (report.counters.indexed, report.counters.failed, report.exit_code) == (40, 0, 0)


async def test_c7_77_one_targets_provider_is_down_while_others_go_on(app, conn, server):
    await conn.execute("create table notes (id bigint primary key, body text)")
    await conn.execute("insert into notes select g, 'note ' || g from generate_series(1, 20) g")
    await added(app, "notes", "body")
    server.faults.status = 404
    reports = await ran(app, "notes")
    assert (reports["notes.embed"].exit_code, reports["notes.search"].counters.indexed) == (1, 20)
    assert (await app.search("notes", "note")).semantic == "unavailable"


async def test_c7_extra_ids_past_two_to_the_31(dsn, conn):
    """graphile-worker 0.17.3: int[] casts."""
    world = await World.make(dsn, conn)
    await conn.execute(
        "insert into articles (id, title) select 3000000000 + g, 'x' || g from generate_series(1, 5) g"
    )
    report = await world.run()
    assert (report.counters.indexed, await world.in_step()) == (5, True)
    await conn.execute("alter sequence instep.change_articles_seq_seq restart with 3000000000")
    await conn.execute("update articles set title = 'y'")
    await world.run()
    assert await world.in_step()


async def test_c7_extra_a_column_dropped_before_the_table_is_added(app, conn):
    """pgai PR#214, PR#248."""
    await conn.execute("create table notes (id bigint primary key, junk text, body text, more int)")
    await conn.execute("alter table notes drop column junk")
    await conn.execute("insert into notes values (1, 'pear', 2)")
    await added(app, "notes", "body", filters=("more",))
    await ran(app)
    assert await found(app, "notes", "pear") == [1]


async def test_c7_extra_an_entry_that_is_throttled_for_ever_has_a_limit(dsn, conn):
    """awa: Retry-After went past max_attempts (attempt 653 of 2)."""
    world = await World.make(dsn, conn, rows=1)
    await world.absorb()
    from instep.engine.outbox import Failure

    for token in range(1, 6):
        entries = await world.outbox().claim(conn, 1, token)
        if not entries:
            break
        await world.outbox().fail(conn, token, [Failure(entries[0], "busy", "later", False, b"h")])
        await conn.execute("update instep.outbox_articles_embed set not_before = null")
    row = await world.entry(1)
    assert (row["attempts"], row["failed_at"] is not None) == (3, True)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
async def test_c7_extra_time_zones_and_the_hour_that_comes_twice(dsn, conn, zone):
    world = await World.make(dsn, conn)
    await conn.execute(f"set timezone = '{zone}'")
    await conn.execute(
        "insert into articles values (1, 'a', true, '2026-10-25 02:30+02'), (2, 'b', true, '2026-10-25 02:30+01'),"
        " (3, 'c', true, '2026-10-25 01:15+01')"
    )
    await world.absorb()
    claimed = await world.outbox().claim(conn, 10, SYSTEM.token())
    assert [entry.key[0] for entry in claimed] == [2, 1, 3] or [e.key[0] for e in claimed] == [2, 3, 1]
    assert claimed[0].key == (2,)


async def test_a_renamed_table_goes_on(app, conn):
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    await conn.execute("insert into notes values (1, 'before')")
    await ran(app)
    await conn.execute(
        "create schema other; alter table notes set schema other; alter table other.notes rename to texts"
    )
    await conn.execute("insert into other.texts values (2, 'afterwards')")
    report = (await ran(app))["notes.embed"]
    assert (report.counters.indexed, report.exit_code) == (1, 0)
    assert await found(app, "notes", "afterwards") == [2]


async def test_a_table_that_is_renamed_under_a_worker_that_stays(app, conn, monkeypatch):
    monkeypatch.setattr("instep.engine.finding.VERIFY_SECONDS", 0.2)
    monkeypatch.setattr("instep.following.PAUSES", (0.1, 0.2))
    monkeypatch.setattr("instep.engine.out.PAUSE_SECONDS", (0.1, 0.2))
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    stop = Stop()
    working = asyncio.create_task(app.run(["notes"], observer=Recorder(), stop=stop, follow=True))
    await conn.execute("insert into notes values (1, 'before')")
    async with asyncio.timeout(40):
        while await found(app, "notes", "before") != [1]:
            await asyncio.sleep(0.1)
        await conn.execute("alter table notes rename to texts")
        await conn.execute("insert into texts values (2, 'afterwards')")
        while True:
            if await found(app, "notes", "afterwards") == [2]:
                break
            await asyncio.sleep(0.2)
    stop.finish()
    await working
    attempts = await (
        await conn.execute("select coalesce(max(attempts), 0) from instep.outbox_notes_embed")
    ).fetchone()
    assert attempts == (0,)


async def test_a_worker_that_stays_outlasts_its_connections(app, conn, monkeypatch):
    """One backend ended, all at once: the worker connects anew and goes on."""
    monkeypatch.setattr("instep.following.PAUSES", (0.1, 0.5))
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    stop = Stop()
    working = asyncio.create_task(app.run(["notes"], observer=Recorder(), stop=stop, follow=True))
    await conn.execute("insert into notes values (1, 'before')")
    async with asyncio.timeout(40):
        while await found(app, "notes", "before") != [1]:
            await asyncio.sleep(0.1)
        await conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await conn.execute("insert into notes values (2, 'afterwards')")
        while await found(app, "notes", "afterwards") != [2]:
            await asyncio.sleep(0.1)
    stop.finish()
    await working


async def test_wait_until_in_sync_reads_ones_own_writes(app, conn):
    await conn.execute("create table notes (id bigint primary key, body text)")
    await added(app, "notes", "body")
    await conn.execute("insert into notes values (1, 'one')")
    assert not await app.wait_until_in_sync("notes", "1", timeout=0.3)
    stop = Stop()
    working = asyncio.create_task(app.run(["notes"], observer=Recorder(), stop=stop, follow=True))
    assert await app.wait_until_in_sync("notes", "1", timeout=20)
    assert await found(app, "notes", "one") == [1]
    stop.finish()
    await working
