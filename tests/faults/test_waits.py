"""Who waits for whom, and what nothing to do costs: the rest of PEERS.md C5.

Elsewhere: 53, 54, 56, 57, 58, 59 in tests/postgres/test_plans.py, 64 in test_schema.py, 65 in test_races.py."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from concurrency_scene import Crowd, crowd
from world import World

Conn = psycopg.AsyncConnection[Any]


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Crowd]:
    async with crowd(dsn, tmp_path) as made:
        yield made


async def test_c5_55_writers_never_wait_for_a_row_that_is_being_worked(dsn: str, conn: Conn) -> None:
    """graphile-worker#121: add_job piled up behind the job's own row. The item is in the model's hands for as long as
    fifty updates of its row take; a wait of 20 ms for a lock would fail the writer's statement."""
    world = await World.make(dsn, conn, rows=3)
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run())
    await world.derivation.faults.arrived.wait()
    writer = await world.dedicated()
    await writer.execute("set lock_timeout = '20ms'")
    for number in range(50):
        await writer.execute("update articles set title = %s where id = 2", (f"version {number}",))
        await world.absorb()  # another worker counts the entry up meanwhile
    await writer.execute("delete from articles where id = 3")
    assert not running.done()
    world.derivation.faults.held.set()
    await running
    await world.run()
    assert await world.outputs() == {1: "TITLE 1", 2: "VERSION 49"}
    await writer.close()


async def test_c5_60_no_row_is_hot_where_writers_meet(dsn: str, conn: Conn) -> None:
    """awa#246: 93 % of lock waits were on one counter row. Eight writers on rows of their own, workers absorbing and
    claiming meanwhile: looked at from outside, no writer waits for any row or transaction."""
    world = await World.make(dsn, conn, rows=80)
    waits: Counter[str] = Counter()
    looks = 0
    end = time.monotonic() + 2

    async def write(own: Conn, number: int) -> int:
        done = 0
        while time.monotonic() < end:
            statement = "update articles set title = title || '.' where id between %s and %s"
            await own.execute(statement, (10 * number + 1, 10 * number + 10))
            done += 1
        return done

    async def work() -> None:
        token = 1
        while time.monotonic() < end:
            await world.absorb()
            claimed = await world.outbox().claim(conn, 50, token)
            await world.outbox().release(conn, token, [entry.key for entry in claimed])
            token += 1

    async def look() -> None:
        nonlocal looks
        watch = await world.dedicated()
        waiting = (
            "select wait_event from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            " and wait_event in ('tuple', 'transactionid', 'relation', 'advisory') and query like 'update articles%'"
        )
        while time.monotonic() < end:
            waits.update(event for (event,) in await (await watch.execute(waiting)).fetchall())
            looks += 1
            await asyncio.sleep(0.002)

    writers = [await world.dedicated() for _ in range(8)]
    *done, _, _ = await asyncio.gather(
        *(write(own, number) for number, own in enumerate(writers)), work(), look()
    )
    assert waits == Counter()
    assert looks > 50
    assert min(done) > 10
    for opened in world.opened:
        await opened.close()


async def test_c5_61_nothing_to_do_costs_next_to_nothing(
    scene: Crowd, conn: Conn, capsys: pytest.CaptureFixture[str]
) -> None:
    """hatchet#2538. A worker that stays, with the default settings, on a table where nothing happens."""
    await conn.execute("insert into articles values (1, 'k1 v1')")
    scene.environment = {**scene.environment, "INSTEP_POLL_SECONDS": "0.25"}
    worker = await scene.follow()
    while not await scene.value("select count(*) from instep.stamp_articles_search"):
        assert worker.process.returncode is None
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)  # what comes after the first rows: the end of the first pass
    scene.onlooker.quiet = True
    counted = "select sum(xact_commit) from pg_stat_database where datname = current_database()"
    process = psutil.Process(worker.process.pid)

    def cpu() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    began, first, used = time.monotonic(), await scene.value(counted), cpu()
    await asyncio.sleep(4)  # a backend tells its numbers once a second
    seconds, last = time.monotonic() - began, await scene.value(counted)
    transactions, share = float(last - first) / seconds, (cpu() - used) / seconds
    assert await scene.stopped(worker) == 0, worker.err
    with capsys.disabled():
        print(f" idle: {transactions:.1f} transactions a second, {100 * share:.1f} % of a core", end="")
    assert 0 < transactions < 40
    assert share < 0.05


async def test_c5_62_cannot_apply_because_no_write_notifies(dsn: str, conn: Conn) -> None:
    """factcast#3911, river PR#301: commits that notify take one lock for the whole database. We poll
    (docs/decisions/0005-polling-no-notify.md); what is shown here is that no function of ours notifies."""
    await World.make(dsn, conn, rows=1)
    sources = await conn.execute(
        "select proname, prosrc from pg_proc where pronamespace = 'instep'::regnamespace"
    )
    functions = dict(await sources.fetchall())
    assert {"capture_articles_insert", "capture_articles_row"} <= functions.keys()
    assert [name for name, body in functions.items() if "notify" in body.lower()] == []
