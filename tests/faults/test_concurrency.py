"""Many workers and writers on the same rows, as processes: no deadlock, nobody waits for a worker longer than a commit,
and all is in step in the end. And two that install the same at the same moment."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from concurrency_scene import Crowd, Onlooker, crowd
from invariants import settled

from instep.database import embedded
from instep.database.migrations import migrate
from shared_server import SERVER_DIRECTORY

Conn = psycopg.AsyncConnection[Any]
DERIVATIONS = ("articles.embed", "articles.search")
COMMIT_SECONDS = 10.0  # wide, for a machine that others use; that it is one statement is what counts


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Crowd]:
    async with crowd(dsn, tmp_path) as made:
        yield made


@pytest.fixture
def roomy() -> Iterator[tuple[str, Path]]:
    """A server of one's own: eight workers hold some ninety connections, and the shared one has a hundred."""
    with tempfile.TemporaryDirectory(prefix="instep-roomy-") as place:
        directory = Path(place) / "data"
        Path(place).chmod(0o755)  # the server runs as another user where the tests are root's
        dsn = embedded.start(directory)
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("alter system set max_connections = 300")
                conn.execute("create extension if not exists vector")
            embedded.stop(directory)
            dsn = embedded.start(directory)
            asyncio.run(migrate(dsn))
            yield dsn, directory
        finally:
            embedded.stop(directory)


def server_log(directory: Path = SERVER_DIRECTORY) -> str:
    """Empty where the tests were given a server of which the log is not at hand."""
    log = embedded.status(directory).log
    return log.read_text(errors="replace") if log.exists() else ""


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """A time-out of the test, where it never comes."""
    while not await true():
        await asyncio.sleep(0.01)


async def named(dsn: str, name: str) -> Conn:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name=name)


async def together(
    scene: Crowd, *, follow: int, again: int, writers: int, seconds: float, directory: Path = SERVER_DIRECTORY
) -> str:
    """All of it at once; the figures, for people."""
    logged = len(server_log(directory))
    stop = asyncio.Event()
    staying = [await scene.follow() for _ in range(follow)]
    loops = [asyncio.create_task(scene.again_and_again(stop)) for _ in range(again)]
    done, longest = await scene.writers(writers, seconds, truncate_every=1.0)
    stop.set()
    await asyncio.gather(*loops)
    for worker in staying:
        assert await scene.stopped(worker) == 0, worker.err
    last = await scene.run("run", "articles", "--json")
    assert last.process.returncode == 0, last.out + last.err
    async with await named(scene.dsn, "judge") as conn:
        await settled(conn, DERIVATIONS)

    assert await scene.deadlocks() == 0
    assert scene.deadlocks_in(server_log(directory)[logged:]) == []
    for worker in (*staying, *scene.ended):
        assert "deadlock" not in worker.err.lower(), worker.err
        assert "Traceback" not in worker.err, worker.err
    assert scene.onlooker.of("writer", "instep") == []  # no write but TRUNCATE ever waits for a worker
    truncating = scene.onlooker.of("truncating writer", "instep")
    for wait in truncating:  # what is being read when it comes; what comes after it queues behind it
        assert len(wait.statements) <= 1, wait
        assert wait.seconds < COMMIT_SECONDS, wait

    assert scene.runs >= again, "no run came to its end"
    assert scene.onlooker.looks > 20 * seconds, "the onlooker was not let look"
    assert min(done[name] for name in ("upsert", "update", "delete", "transaction", "truncate")) >= 3, done
    waited = max((wait.seconds for wait in truncating), default=0.0)
    return (
        f"{follow + again} workers ({scene.runs} runs), {writers} writers, {sum(done.values())} writes,"
        f" {done['truncate']} truncates; longest write {longest:.2f} s; TRUNCATE waited for workers {len(truncating)}"
        f" times, {waited:.2f} s at most; {scene.onlooker.looks} looks"
    )


async def test_workers_and_writers_on_the_same_rows(scene: Crowd, capsys: pytest.CaptureFixture[str]) -> None:
    told = await together(scene, follow=1, again=2, writers=3, seconds=8)
    with capsys.disabled():
        print(f" {told}", end="")


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_eight_workers_and_writers_on_the_same_rows_for_a_minute(
    roomy: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with crowd(roomy[0], tmp_path) as scene:
        told = await together(scene, follow=5, again=3, writers=6, seconds=60, directory=roomy[1])
    with capsys.disabled():
        print(f" {told}", end="")


async def test_the_onlooker_sees_a_writer_that_waits_for_a_worker(dsn: str, conn: Conn) -> None:
    await conn.execute("create table articles as select 1 as id")
    onlooker = Onlooker()
    looking = asyncio.create_task(onlooker.look(dsn))
    async with await named(dsn, "instep") as worker, await named(dsn, "writer") as writer:
        async with worker.transaction():
            await worker.execute("select from articles for update")
            writing = asyncio.create_task(writer.execute("delete from articles"))

            async def seen() -> bool:
                return any(wait.seconds > 0.05 for wait in onlooker.of("writer", "instep"))

            await until(seen)
        await writing
    looking.cancel()
    (wait,) = onlooker.of("writer", "instep")
    assert "for update" in str(wait.statements)


async def test_the_count_and_the_log_tell_of_a_deadlock(dsn: str, conn: Conn) -> None:
    await conn.execute("create table articles as select 1 as id union all select 2")
    scene, logged = Crowd(dsn, {}), len(server_log())
    looking = asyncio.create_task(scene.onlooker.look(dsn))

    async def lock(first: int, second: int, turn: asyncio.Event, other: asyncio.Event) -> None:
        async with await named(dsn, "writer") as session, session.transaction():
            await session.execute("set local deadlock_timeout = '20ms'")
            await session.execute("select from articles where id = %s for update", (first,))
            turn.set()
            await other.wait()
            await session.execute("select from articles where id = %s for update", (second,))

    one, two = asyncio.Event(), asyncio.Event()
    outcomes = await asyncio.gather(lock(1, 2, one, two), lock(2, 1, two, one), return_exceptions=True)
    assert sum(isinstance(outcome, psycopg.errors.DeadlockDetected) for outcome in outcomes) == 1

    async def counted() -> bool:
        return await scene.deadlocks() == 1

    await until(counted)
    looking.cancel()
    log = server_log()
    assert not log or len(scene.deadlocks_in(log[logged:])) == 1


ADD = """
import asyncio, sys
from instep.app import Instep
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.workshop import add_table
from instep.settings import Settings

async def main():
    async with Instep.open(Settings.load()) as app:
        while line := await asyncio.to_thread(sys.stdin.readline):  # the loop goes on meanwhile
            table, splitter = line.split()
            try:
                added = await add_table(app, TableOptions(table, ("title",), engine="postgres", splitter=splitter))
                print("already" if added.already else "added", flush=True)
            except Exception as error:
                print(type(error).__name__, str(error).splitlines()[0], flush=True)

asyncio.run(main())
"""
ROUNDS = 3


async def at_once(scene: Crowd, lines: list[list[str]]) -> list[list[str]]:
    """Two processes; of each pair of lines each gets one, at the same moment. Their answers, pair by pair."""
    both = [await scene.start("-c", ADD, stdin=True) for _ in range(2)]
    answers = []
    for pair in lines:
        for one, line in zip(both, pair, strict=True):
            assert one.process.stdin is not None
            one.process.stdin.write(f"{line}\n".encode())
        told = []
        for one in both:
            assert one.process.stdout is not None
            async with asyncio.timeout(60):
                told.append((await one.process.stdout.readline()).decode().strip())
        answers.append(sorted(told))
    for one in both:
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert await one.ended() == 0, one.err
        assert one.err == ""
    return answers


async def test_two_processes_install_the_same_derivation_at_the_same_moment(scene: Crowd, conn: Conn) -> None:
    """The same: one set of tables, triggers and targets each time, and both are told that it is there. Otherwise: one
    wins whole, the other is refused and takes nothing away."""
    same, otherwise = [f"same_{n}" for n in range(ROUNDS)], [f"otherwise_{n}" for n in range(ROUNDS)]
    for name in (*same, *otherwise):
        await conn.execute(f"create table {name} (id bigint primary key, title text)".encode())
        await conn.execute(f"insert into {name} values (1, 'k1 v1')".encode())
    answers = await at_once(
        scene,
        [[f"{name} 1000c"] * 2 for name in same] + [[f"{name} 1000c", f"{name} 500c"] for name in otherwise],
    )
    for name, told in zip((*same, *otherwise), answers, strict=True):
        if name in same:
            assert set(told) <= {"added", "already"}, answers
        else:
            assert told[1] == "added", answers
            assert told[0].startswith(f"Refused {name} is already added, otherwise"), answers
        counts = await conn.execute(
            "select (select count(*) from instep.derivation where source = %(name)s),"
            " (select count(*) from instep.target where source = %(name)s and state = 'reading'),"
            " (select count(*) from instep.target where source = %(name)s),"
            " (select count(*) from pg_trigger where tgrelid = %(name)s::regclass and not tgisinternal)",
            {"name": name},
        )
        assert await counts.fetchone() == (2, 2, 2, 5)
    run = await scene.run("run", same[0], otherwise[0], "--json")
    assert run.process.returncode == 0, run.err
    for name in (same[0], otherwise[0]):
        rows = f"select id, true, title, array[title]::text[] from {name}"
        await settled(conn, [f"{name}.embed", f"{name}.search"], rows)
