"""PostgreSQL in trouble under real workers: restarted, one backend ended, read-only after a failover, time limits of the
role. Afterwards everything is in step and nothing was counted against an item."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from database_scene import Scene, Worker, scene
from psycopg.conninfo import conninfo_to_dict
from world import World

from instep.database import embedded
from instep.database.migrations import migrate

LEASE = {"lease_seconds": 6, "call_timeout_seconds": 6}
RESTARTS = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT}  # what pg_ctl sends


@pytest.fixture
def own_server() -> Iterator[Path]:
    """The data directory of a PostgreSQL that this test alone uses and may end."""
    with tempfile.TemporaryDirectory(prefix="instep-own-") as directory:
        os.chmod(directory, 0o755)
        embedded.start(Path(directory))
        yield Path(directory)
        embedded.stop(Path(directory))


async def restart(directory: Path, mode: str, down: float = 0.0) -> None:
    pid = embedded.status(directory).pid
    assert pid is not None
    postmaster = psutil.Process(pid)
    postmaster.send_signal(RESTARTS[mode])
    await asyncio.to_thread(postmaster.wait, 60)
    await asyncio.sleep(down)
    await asyncio.to_thread(embedded.start, directory)


@asynccontextmanager
async def runs(here: Scene, **settings: object) -> AsyncIterator[list[Worker]]:
    """`instep run`, again and again, as cron would start it."""
    ended: list[Worker] = []

    async def again() -> None:
        while True:
            ended.append(await here.run(seconds=90, **settings))
            await asyncio.sleep(0.5)

    task = asyncio.create_task(again())
    try:
        yield ended
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):  # nothing else: what ended the runs is told
            await task
        for worker in here.workers:  # the one that was under way
            if worker not in ended and worker.code is None and "--follow" not in worker.arguments:
                await worker.ended(90)


@asynccontextmanager
async def own_scene(directory: Path, work: Path, rows: int) -> AsyncIterator[Scene]:
    dsn = embedded.start(directory)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create extension if not exists vector")
    await migrate(dsn)
    async with scene(dsn, work, rows=rows) as here:
        yield here


async def outlasts_restarts(directory: Path, work: Path, rows: int, pauses: list[float], slow: float) -> None:
    async with own_scene(directory, work, rows) as here:
        here.model.faults.slow = slow
        worker = await here.start("worker", "--follow", batch_size=100, **LEASE)
        async with runs(here, batch_size=100, **LEASE) as ended:
            for number, pause in enumerate(pauses):
                await asyncio.sleep(pause)
                while not number and not await here.done():
                    await asyncio.sleep(0.05)
                if number:  # what was done in the pause makes room for more
                    await here.rows(
                        "update notes set body = body || ' again' where id %% 10 = %s returning 1",
                        number % 10,
                    )
                else:
                    assert await here.done() < rows, "the restart is not in the middle of the work"
                await restart(directory, list(RESTARTS)[number % 2], down=number % 3)
            await here.until_in_step(300)
            assert ended, "no run ended"
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) in (0, 1), worker.err  # 1: in the pause after an outage
        assert {run.code for run in ended} <= {0, 1}, [run.err for run in ended]
        assert await here.in_step() == []


@pytest.mark.timeout(240)
async def test_a_restart_in_the_middle_of_the_work(own_server: Path, tmp_path: Path) -> None:
    await outlasts_restarts(own_server, tmp_path, 600, [0.0], slow=0.01)


@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_a_restart_each_5_to_40_seconds(own_server: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("INSTEP_TEST_SEED", "5"))
    pauses = [random.Random(seed + number).uniform(5, 40) for number in range(10)]
    await outlasts_restarts(own_server, tmp_path, 10_000, pauses, slow=0.15)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_c6_70_five_minutes_without_a_database(own_server: Path, tmp_path: Path) -> None:
    """A worker that stays outlasts them; it does not look well and do nothing."""
    async with own_scene(own_server, tmp_path, 600) as here:
        here.model.faults.slow = 0.01
        worker = await here.start("worker", "--follow", batch_size=50, **LEASE)
        while not await here.done():
            await asyncio.sleep(0.1)
        await restart(own_server, "fast", down=300)
        await here.insert(100, first=5000)
        await here.until_in_step(120)
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) in (0, 1), worker.err  # 1: in the pause after an outage


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_c2_28_a_restart_while_a_wave_is_halved(own_server: Path, tmp_path: Path) -> None:
    """The one bad row is a dead letter by its own failures, no other row has an attempt."""
    async with own_scene(own_server, tmp_path, 200) as here:
        here.model.faults.refuse = {"poison": 400}
        here.model.faults.slow = 0.005
        await here.rows("insert into notes values (999, 'poison')")
        worker = await here.start("worker", "--follow", batch_size=300, **LEASE)
        for _ in range(2):
            while not any(len(batch) < 30 and "poison" in batch for batch in here.model.batches):
                await asyncio.sleep(0.02)
            here.model.forget()
            await restart(own_server, "immediate")
        deadline = time.monotonic() + 120
        left = "select key_1, attempts > 0, failed_at is not null from instep.outbox_notes_embed"
        while await here.rows(left) != [(999, True, True)] or await here.done() < 200:
            assert time.monotonic() < deadline, await here.rows(left)
            await asyncio.sleep(0.5)
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) == 1


# One backend ended in each phase: the one whose last statement is the phase's.
PHASES = {
    "absorb": 'delete from "instep"."change_notes"',
    "claim": "claims = claims + 1",
    "load": "select k.place, s.short",
    "commit": "finished as (delete from",
    "heartbeat": "set seen_at = now(), counters",
}


async def end_backend(here: Scene, marker: str, seconds: float = 30) -> int:
    deadline = time.monotonic() + seconds
    async with await psycopg.AsyncConnection.connect(here.dsn, autocommit=True) as conn:
        while time.monotonic() < deadline:
            ended = await (
                await conn.execute(
                    "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid() and position(%s in query) > 0 limit 1) one",
                    [marker],
                )
            ).fetchone()
            if ended and ended[0]:
                return int(ended[0])
    return 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "phases",
    [("claim", "commit"), pytest.param(tuple(PHASES), marks=pytest.mark.torture)],
    ids=["two", "all"],
)
async def test_c2_34_one_backend_ended_in_each_phase(
    dsn: str, tmp_path: Path, phases: tuple[str, ...]
) -> None:
    """The same process goes on each time."""
    async with scene(dsn, tmp_path, rows=200) as here:
        here.model.faults.slow = 0.002
        worker = await here.start("worker", "--follow", batch_size=20, **LEASE)
        for number, phase in enumerate(phases):
            await here.insert(200, first=1000 * (number + 1))
            assert await end_backend(here, PHASES[phase]) == 1, f"{phase} was not seen"
            await here.until_in_step(60)
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) in (0, 1), worker.err  # 1: in the pause after an outage


@pytest.mark.timeout(240)
async def test_a_failover_to_a_server_that_refuses_writes(dsn: str, tmp_path: Path) -> None:
    """SQLSTATE 25006: nothing is counted; the worker that stays goes on when it reaches a primary again."""
    name = conninfo_to_dict(dsn)["dbname"]
    end_all = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with scene(dsn, tmp_path, rows=200) as here:
        here.model.faults.slow = 0.005
        worker = await here.start("worker", "--follow", batch_size=20, **LEASE)
        while not await here.done():
            await asyncio.sleep(0.05)
        await here.rows(f"alter database {name} set default_transaction_read_only = on")
        await here.rows(end_all)
        once = await here.run(**LEASE)
        assert once.code == 1, (once.out, once.err)
        assert "read-only" in once.out + once.err, (once.out, once.err)
        await asyncio.sleep(3)
        assert worker.code is None, worker.err
        assert await here.counted() == 0
        with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=off") as conn:
            conn.execute(f"alter database {name} reset default_transaction_read_only")
        await here.until_in_step(90)  # its sessions still refuse writes: it must make new ones by itself
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) in (0, 1), worker.err  # 1: in the pause after an outage


@pytest.mark.timeout(120)
async def test_time_limits_of_the_role_are_not_ours(dsn: str, tmp_path: Path) -> None:
    """Set for an application, they would end an index build, a sweep, and a worker that waits for its model."""
    name = conninfo_to_dict(dsn)["dbname"]
    async with scene(dsn, tmp_path, rows=1200) as here:
        here.model.faults.slow = 0.002
        for limit in (
            "statement_timeout = '25ms'",
            "lock_timeout = '1ms'",
            "idle_in_transaction_session_timeout = '1ms'",
            "idle_session_timeout = '200ms'",
            "transaction_timeout = '25ms'",
        ):
            await here.rows(f"alter role postgres in database {name} set {limit}")
        worker = await here.run()
        assert worker.code == 0, (worker.out, worker.err)
        for limit in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout"):  # fmt: skip
            with psycopg.connect(
                dsn, autocommit=True, options=f"-c {limit}=0 -c statement_timeout=0 -c transaction_timeout=0"
            ) as conn:
                conn.execute(f"alter role postgres in database {name} reset {limit}")
        assert await here.in_step() == []


async def test_a_statement_that_the_server_ends_is_the_waves_budget(
    dsn: str, conn: psycopg.AsyncConnection
) -> None:
    """statement_timeout where no session can set it, behind a pooler: the wave is parked, uncounted, and said."""
    world = await World.make(dsn, conn, rows=20)
    await conn.execute(
        "create function slow() returns trigger language plpgsql as $$ begin"
        " if new.key_1 = 7 then perform pg_sleep(3); end if; return new; end $$;"
        "create trigger slow before insert on instep.toy for each row execute function slow()"
    )
    name = conninfo_to_dict(dsn)["dbname"]
    await conn.execute(f"alter database {name} set statement_timeout = '500ms'")
    report = await world.run(batch=10)
    assert (report.counters.abandoned, report.counters.failed, report.counters.dead, report.exit_code) == (
        10,
        0,
        0,
        1,
    )
    assert sum(row["attempts"] for row in await world.entries()) == 0
    assert len(await world.outputs()) == 10
    await conn.execute("drop trigger slow on instep.toy")
    await conn.execute("update instep.outbox_articles_embed set not_before = null")
    assert (await world.run()).exit_code == 0
    assert await world.in_step()
