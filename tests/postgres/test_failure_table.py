"""The failure table of ENGINE.md over real HTTP, row by row: attempts, dead letters, exit code, number of requests."""

import asyncio

import numpy as np
import pytest
from embedding_world import DIMENSIONS, EmbeddingWorld

from instep.testing.model_server import ModelServer, vector_of


@pytest.fixture
async def server():
    async with ModelServer("tei", dimensions=DIMENSIONS) as running:
        running.faults.max_batch = 512
        yield running


@pytest.fixture
async def world(dsn, conn, server):
    world = await EmbeddingWorld.make(dsn, conn, server)
    yield world
    await world.embedder.close()


async def test_vectors_are_the_servers(world):
    await world.insert(70)
    report = await world.run()
    assert (report.counters.indexed, report.exit_code, world.server.requests) == (70, 0, 1)
    chunk = world.tables.chunk.as_string(None)
    for text, vector in await world.rows(f"select text, vector::text from {chunk}"):
        np.testing.assert_allclose(
            np.fromstring(vector.strip("[]"), sep=","), vector_of(text, DIMENSIONS), atol=1e-6
        )


async def test_c7_75_one_bad_of_500(world):
    """At most 20 calls, 499 stamped, one dead with the server's word (the peer leaves 500 undone)."""
    await world.insert(500)
    await world.conn.execute("update articles set title = 'poison' where id = 123")
    world.server.faults.refuse = {"poison": 400}
    report = await world.run()
    assert world.server.requests <= 20
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (499, 1, 1)
    assert len(await world.stamped()) == 499
    attempts, kind, error, dead = (await world.entries())[123]
    assert (attempts, kind, dead) == (1, "input refused", True)
    assert "400" in error
    requests = world.server.requests
    again = await world.run()
    assert (again.exit_code, world.server.requests) == (0, requests)


async def test_one_bad_of_a_thousand(world):
    """999 are done, one is dead with the server's word (the peer leaves 500 undone)."""
    await world.insert(1000)
    await world.conn.execute("update articles set title = 'poison' where id = 700")
    world.server.faults.refuse = {"poison": 400}
    report = await world.run()
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (999, 1, 1)


async def test_a_mended_dead_letter_is_made_by_itself(world):
    await world.insert(5)
    await world.conn.execute("update articles set title = 'poison' where id = 2")
    world.server.faults.refuse = {"poison": 400}
    await world.run()
    await world.conn.execute("update articles set title = 'mended' where id = 2")
    report = await world.run()
    assert (report.exit_code, (await world.chunks())[2]) == (0, {"mended"})


async def test_a_server_that_is_down_is_an_outage(world):
    """An hour's outage must not dead-letter a catalogue."""
    await world.insert(600)
    await world.server.stop()
    for _ in range(4):
        report = await world.run()
        assert (report.exit_code, bool(report.outage), report.counters.failed, report.counters.dead) == (
            1,
            True,
            0,
            0,
        )
    assert {entry[0] for entry in (await world.entries()).values()} == {0}
    await world.server.start()
    report = await world.run()
    assert (report.counters.indexed, report.exit_code) == (600, 0)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_refuses_everything_for_now_is_an_outage(world, status):
    await world.insert(40)
    world.server.faults.status = status
    report = await world.run()
    assert (report.exit_code, str(status) in report.outage) == (1, True)
    assert set((await world.entries()).values()) == {(0, None, None, False)}
    assert world.server.requests == 5 + 2  # five tries, and the probe's two


async def test_a_text_answered_with_500_is_the_items_failure(world):
    """Never an outage for ever: the probe passes."""
    await world.insert(8)
    await world.conn.execute("update articles set title = 'breaks' where id = 3")
    world.server.faults.refuse = {"breaks": 500}
    report = await world.run()
    assert (report.outage, report.counters.indexed, report.counters.failed) == ("", 7, 1)
    assert (await world.entries())[3][:2] == (1, "server error")


@pytest.mark.parametrize(("status", "setting"), [(401, "API_KEY"), (403, "API_KEY"), (404, "URL")])
async def test_a_wrong_setting_is_a_configuration_error(world, status, setting):
    await world.insert(40)
    world.server.faults.status = status
    report = await world.run()
    assert (report.exit_code, bool(report.configuration), report.outage) == (1, True, "")
    assert str(status) in report.configuration
    assert set((await world.entries()).values()) == {(0, None, None, False)}


async def test_another_dimension_than_the_stored_one_is_a_configuration_error(dsn, conn):
    async with ModelServer("tei", dimensions=4) as server:
        world = await EmbeddingWorld.make(dsn, conn, server)
        server.dimensions = 6
        await world.insert(3)
        report = await world.run()
        await world.embedder.close()
    assert report.exit_code == 1
    assert "6" in report.configuration
    assert set((await world.entries()).values()) == {(0, None, None, False)}


@pytest.mark.parametrize("body", [b"<html><body>It works!</body></html>", b'{"unexpected": 1}'])
async def test_an_unknown_answer_is_a_configuration_error(world, body):
    await world.insert(10)
    world.server.faults.body = body
    report = await world.run()
    assert (report.exit_code, bool(report.configuration)) == (1, True)
    assert {entry[0] for entry in (await world.entries()).values()} == {0}


@pytest.mark.parametrize("fault", ["nan", "null", "infinite", "zeros", "empty", "narrow"])
async def test_c7_78_a_bad_vector_is_its_own_items_failure(world, fault):
    """None is stored, only that item fails."""
    await world.insert(9)
    await world.conn.execute("update articles set title = 'strange' where id = 4")
    setattr(world.server.faults, fault, "strange")
    report = await world.run()
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (8, 1, 1)
    assert 4 not in await world.chunks()
    assert (await world.entries())[4][3] is True


async def test_too_few_vectors_are_never_stored(world):
    await world.insert(6)
    world.server.faults.too_few = True
    report = await world.run()
    assert report.exit_code == 1
    assert await world.chunks() == {}
    assert not any(dead for *_, dead in (await world.entries()).values())


async def test_nan_for_everything_dead_letters_nothing(world):
    await world.insert(30)
    world.server.faults.nan = ""
    report = await world.run()
    assert (report.exit_code, bool(report.configuration)) == (1, True)
    assert {entry[0] for entry in (await world.entries()).values()} == {0}


async def test_a_batch_that_is_too_large_for_the_server_is_split(world):
    world.server.faults.max_batch = 16
    await world.insert(200)
    report = await world.run()
    assert (report.counters.indexed, report.exit_code) == (200, 0)


async def test_answers_that_break_off_are_asked_again(world):
    world.server.faults.drop = 2
    await world.insert(10)
    report = await world.run()
    assert (report.counters.indexed, report.exit_code) == (10, 0)


async def test_a_timeout_of_the_wave_counts_nothing(world):
    await world.insert(10)
    world.server.hold()
    report = await world.run(call_timeout_seconds=0.3)
    world.server.release()
    assert (report.counters.abandoned, report.counters.failed, report.exit_code) == (10, 0, 1)
    assert {entry[0] for entry in (await world.entries()).values()} == {0}
    parked = await world.rows("select count(*) from instep.outbox_articles_embed where not_before > now()")
    assert parked == [(10,)]


async def test_c1_5_a_delete_while_the_server_is_held_returns_at_once_and_leaves_no_vector(world):
    await world.insert(3)
    world.server.hold()
    running = asyncio.create_task(world.run())
    await world.server.arrived(1)
    await asyncio.sleep(0.3)
    held = await world.rows(
        "select query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend' and xact_start < now() - interval '0.2 s'"
    )
    assert held == []
    await world.conn.execute("set statement_timeout = '100ms'")
    await world.conn.execute("delete from articles where id = 2")
    await world.conn.execute("set statement_timeout = 0")
    world.server.release()
    await running
    await world.run()
    assert set(await world.chunks()) == {1, 3}


async def test_c1_1_an_update_while_the_server_is_held_wins(world):
    await world.insert(2)
    world.server.hold()
    running = asyncio.create_task(world.run())
    await world.server.arrived(1)
    await world.conn.execute("update articles set title = 'newer' where id = 1")
    world.server.release()
    await running
    await world.run()
    assert (await world.chunks())[1] == {"newer"}


async def test_c1_3_a_thousand_unwatched_updates_cost_nothing(world):
    await world.conn.execute("alter table articles add column views integer default 0")
    await world.insert(1000)
    await world.run()
    requests = world.server.requests
    for _ in range(3):
        await world.conn.execute("update articles set views = views + 1")
    log = await world.rows("select count(*) from instep.change_articles")
    report = await world.run()
    assert (log, await world.entries(), world.server.requests, report.counters.indexed) == (
        [(0,)],
        {},
        requests,
        0,
    )


async def test_c1_10_a_trailing_delete_is_taken_up(world):
    await world.insert(3)
    await world.run()
    await world.conn.execute("delete from articles where id = 3")
    report = await world.run()
    assert (report.counters.removed, set(await world.chunks())) == (1, {1, 2})


async def test_c1_11_rows_that_cannot_be_embedded_do_not_keep_coverage_below_100(world):
    await world.insert(3)
    await world.conn.execute(
        "update articles set title = null where id = 1; update articles set title = '' where id = 2"
    )
    report = await world.run()
    assert (report.exit_code, report.pending, await world.stamped()) == (0, 0, {1, 2, 3})


async def test_c7_79_odd_characters_reach_neither_database_nor_dead_letter(world):
    await world.insert(1)
    await world.conn.execute("update articles set title = E'a\\u0001b\\u0007 c' where id = 1")
    report = await world.run()
    assert (report.exit_code, (await world.chunks())[1]) == (0, {"ab c"})
