"""What a provider does wrong, over real HTTP: an hour out, three calls a minute, one of several down, poison, too large.

Public reports of peers (PEERS.md, C7) have their numbers in the names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from app_scene import added, opened
from embedding_world import DIMENSIONS, EmbeddingWorld
from provider_scene import ThrottlingServer, Timelapse, Waiting
from world import World

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.clock import SYSTEM, Clock
from instep.engine import install
from instep.engine.declaration import Target
from instep.engine.failures import Stopped
from instep.engine.out import Out
from instep.engine.ports import RunReport
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.wave import Limits
from instep.errors import Permanent
from instep.inference.ports import Embedded, Embedder
from instep.inference.providers import create_embedder
from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer("tei", dimensions=DIMENSIONS) as running:
        running.faults.max_batch = 512
        yield running


def client(server: ModelServer, **settings: Any) -> Embedder:
    given = {"url": server.url, "model": server.model_name, "dimensions": server.dimensions, "batch": 500}
    return create_embedder("tei", **{**given, **settings})


async def world_of(dsn: str, conn: Any, server: ModelServer, **settings: Any) -> EmbeddingWorld:
    """A world whose embedder is `client`'s."""
    world = await EmbeddingWorld.make(dsn, conn, server)
    await world.embedder.close()
    use(world, client(server, **settings))
    return world


def use(world: EmbeddingWorld, embedder: Embedder) -> None:
    world.embedder = embedder
    declaration = world.derivation.declaration
    world.derivation = ChunkDerivation(declaration, lambda target: making_of(target, embedder))


async def ran(
    world: EmbeddingWorld, *, clock: Clock = SYSTEM, stop: Stop | None = None, follow: bool = False, **limits: Any
) -> RunReport:  # fmt: skip
    reports = await run(
        world, world.source, [world.derivation], clock=clock, observer=world.recorder,
        options=Options(Limits(**limits), follow=follow, poll_seconds=0.05), stop=stop or Stop(),
    )  # fmt: skip
    return reports[0]


async def entries(conn: Any) -> list[tuple[Any, ...]]:
    """All that an outbox knows."""
    rows = await conn.execute("select o::text from instep.outbox_articles_embed o order by key_1, target")
    return list(await rows.fetchall())


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


# An hour


@pytest.mark.parametrize("minutes", [6, pytest.param(1, marks=pytest.mark.torture)])
async def test_an_hours_outage_counts_nothing(dsn: str, conn: Any, server: ModelServer, minutes: int) -> None:
    """Refused connections, then 503, then requests that hang: attempts 0, dead 0, entries unchanged, every run exits 1;
    the healed run finishes all."""
    clock = Timelapse(server)
    world = await world_of(dsn, conn, server, sleep=clock.sleep, clock=clock, request_timeout=0.05)
    await world.insert(300)
    await server.stop()
    before: list[tuple[Any, ...]] | None = None
    began, runs = clock.monotonic(), 0
    words: list[str] = []
    async with clock.running():
        while (passed := clock.monotonic() - began) < 3600:
            if passed > 1200 and server.faults.status is None and server.requests == 0:
                await server.start()
                server.faults.status = 503
            if passed > 2400 and server.faults.status is not None:
                server.faults.status = None
                server.hold()
            report = await ran(world, batch=100)
            assert (report.exit_code, bool(report.outage), report.counters.failed, report.counters.dead) == (
                1, True, 0, 0,
            )  # fmt: skip
            words.append(report.outage)
            before = before or await entries(conn)
            assert await entries(conn) == before
            runs += 1
            clock.pass_by(max(0.0, minutes * 60 * runs - (clock.monotonic() - began)))
        assert len(before or []) == 300
        for said in ("could not be connected to", "answered 503", "gave no answer within"):
            assert any(said in word for word in words), (said, words)
        assert set((await world.entries()).values()) == {(0, None, None, False)}
        server.mend()
        use(world, client(server))
        report = await ran(world)
    assert (report.counters.indexed, report.exit_code, await world.entries()) == (300, 0, {})


async def test_an_hours_outage_is_waited_for_with_follow(
    dsn: str, conn: Any, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stays, tries about once a minute, counts nothing, and goes on by itself."""
    monkeypatch.setattr("instep.engine.run.IDLE_SECONDS", 0.02)
    clock = Timelapse(server)
    world = await world_of(dsn, conn, server, sleep=clock.sleep, clock=clock)
    world.recorder = Waiting(clock)
    await world.insert(50)
    await server.stop()
    stop, began = Stop(), clock.monotonic()
    async with clock.running():
        running = asyncio.create_task(ran(world, clock=clock, stop=stop, follow=True))
        async with asyncio.timeout(120):
            while clock.monotonic() - began < 3600:
                await asyncio.sleep(0.05)
        told = world.recorder.named("outage")
        assert 20 <= len(told) <= 70
        assert {entry[0] for entry in (await world.entries()).values()} == {0}
        await server.start()

        async def done() -> bool:
            return len(await world.stamped()) == 50

        await until(done)
        stop.finish()
        report = await running
    assert (report.counters.indexed, report.counters.failed, report.counters.dead) == (50, 0, 0)


# Three calls a minute


async def test_c7_77_three_calls_a_minute_are_used(dsn: str, conn: Any) -> None:
    """At least 90% of what the server allows, no attempt counted, within a run and across runs; every text sent once
    but for those that were refused."""
    async with ThrottlingServer(calls=3, seconds=60, dimensions=DIMENSIONS) as server:
        clock = server.clock
        world = await world_of(dsn, conn, server, sleep=clock.sleep, clock=clock, batch=10)
        began, indexed = clock.monotonic(), 0
        async with clock.running():
            for number in range(3):
                await world.insert(150, first=1 + 150 * number)
                report = await ran(world, batch=75)
                assert (report.exit_code, report.counters.failed, report.outage) == (0, 0, "")
                indexed += report.counters.indexed
                await world.embedder.close()
                use(world, client(server, sleep=clock.sleep, clock=clock, batch=10))  # as a new process
        await world.embedder.close()
        assert indexed == 450
        assert len(server.answered) <= 45 + 3 * 4  # a wave's last request is not full
        assert server.rate(began) >= 0.9
        assert clock.monotonic() - began > 700, "the server did not throttle"


async def test_c7_77_a_worker_that_stays_waits_as_long_as_it_is_told_and_no_longer(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Retry-After beyond what a request waits for is an outage; what was answered before it is not sent again, so
    that a wave of several requests gets done at one call each 90 seconds."""
    monkeypatch.setattr("instep.engine.run.IDLE_SECONDS", 0.02)
    async with ThrottlingServer(calls=1, seconds=90, dimensions=DIMENSIONS) as server:
        clock = server.clock
        world = await world_of(dsn, conn, server, sleep=clock.sleep, clock=clock, batch=10)
        world.recorder = Waiting(clock)
        await world.insert(60)
        stop, began = Stop(), clock.monotonic()
        async with clock.running():
            running = asyncio.create_task(ran(world, clock=clock, stop=stop, follow=True))

            async def done() -> bool:
                return len(await world.stamped()) == 60

            await until(done, 100)
            rate = server.rate(began)
            stop.finish()
            await running
        await world.embedder.close()
        waits = [event["seconds"] for event in world.recorder.named("outage")]
        assert waits
        assert all(60 < seconds <= 90 for seconds in waits)
        assert len(server.answered) <= 7
        assert rate >= 0.9
        assert {entry[0] for entry in (await world.entries()).values()} <= {0}


def test_a_pause_is_what_the_server_asks_for_else_it_doubles() -> None:
    out = Out(Timelapse(ModelServer()), again=True)
    assert [out.add("a", Stopped("outage", "503")) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    assert [out.add("a", Stopped("outage", "429", asked)) for asked in (20.0, 3600.0, 0.0)] == [20, 3600, 1]
    assert out.waits("a")
    assert not out.waits("b")


async def test_c7_77_clients_that_share_three_calls_a_minute_all_get_there() -> None:
    """A pause that the server asks for uses up no try: one of six clients waits for its turn many times."""
    async with ThrottlingServer(calls=3, seconds=60, dimensions=DIMENSIONS) as server:
        clock = server.clock
        clients = [client(server, sleep=clock.sleep, clock=clock, batch=10) for _ in range(6)]
        began = clock.monotonic()
        async with clock.running():
            texts = [[f"{number} {n}" for n in range(40)] for number in range(6)]
            answers = await asyncio.gather(*map(_embed, clients, texts))
        for one in clients:
            await one.close()
        assert all(len(answer.vectors) == 40 for answer in answers)
        assert (len(server.answered), server.rate(began) >= 0.9) == (24, True)


async def _embed(embedder: Embedder, texts: list[str]) -> Embedded:
    return await embedder.embed(texts)


# A run that is told to stop


async def test_a_run_is_cancelled_while_many_requests_wait(dsn: str, conn: Any, server: ModelServer) -> None:
    """SIGTERM in the middle of a slow wave: released at once, nothing counted."""
    world = await world_of(dsn, conn, server, batch=32)
    server.faults.slow = 0.02
    await world.insert(1000)
    running = asyncio.create_task(ran(world, batch=500))
    await server.arrived(8)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await running
    await world.embedder.close()
    held = await world.rows(
        "select count(*), max(attempts), max(claims) from instep.outbox_articles_embed where token is null"
    )
    assert held == [(1000, 0, 0)]


# One of several is down


async def with_two_targets(dsn: str, conn: Any, server: ModelServer, other: ModelServer) -> EmbeddingWorld:
    """A second target of the derivation, whose model is on `other`."""
    world = await EmbeddingWorld.make(dsn, conn, server)
    spec = world.target.spec
    declaration = world.derivation.declaration
    wanted = [world.target, Target(0, declaration.name, "another-v1", "filling", spec)]
    made = await install.install(conn, world.source, [declaration], wanted)
    clients = {world.target.name: world.embedder, "another-v1": client(other, sleep=_at_once)}
    derivation = ChunkDerivation(made.declarations[0], lambda target: making_of(target, clients[target.name]))
    world.derivation = derivation
    return world


async def _at_once(_seconds: float) -> None:
    return


async def stamped(conn: Any) -> dict[str, int]:
    rows = await conn.execute("select target, count(*)::int from instep.stamp_articles_embed group by target")
    return dict(await rows.fetchall())


@pytest.mark.parametrize("down", ["first", "second"])
@pytest.mark.parametrize("fault", [503, 404])
async def test_c7_77_one_targets_provider_is_down_and_the_other_goes_on(
    dsn: str, conn: Any, server: ModelServer, down: str, fault: int
) -> None:
    async with ModelServer("tei", dimensions=DIMENSIONS) as other:
        world = await with_two_targets(dsn, conn, server, other)
        await world.insert(40)
        out, well = (server, "another-v1") if down == "first" else (other, world.target.name)
        out.faults.status = fault
        report = await ran(world)
        assert report.exit_code == 1
        assert str(fault) in report.outage + report.configuration
        assert await stamped(conn) == {well: 40}
        assert {entry[0] for entry in (await world.entries()).values()} == {0}
        out.mend()
        await ran(world)
        assert await stamped(conn) == {"another-v1": 40, world.target.name: 40}
        await world.embedder.close()


async def test_c7_77_with_follow_the_other_target_does_not_wait(
    dsn: str, conn: Any, server: ModelServer
) -> None:
    """The pause of the one that is out is five seconds and more; the other is in step meanwhile."""
    async with ModelServer("tei", dimensions=DIMENSIONS) as other:
        world = await with_two_targets(dsn, conn, server, other)
        server.faults.status = 503
        stop = Stop()
        running = asyncio.create_task(ran(world, stop=stop, follow=True))
        await world.insert(10)
        for rows in (10, 20, 30):

            async def done(wanted: int = rows) -> bool:
                return (await stamped(conn)).get("another-v1") == wanted

            await until(done)
            if rows < 30:
                await world.insert(10, first=rows + 1)
        assert len(world.recorder.named("outage")) >= 1
        assert world.target.name not in await stamped(conn)
        stop.finish()
        await running
        await world.embedder.close()


async def test_c7_77_one_table_that_cannot_be_worked_does_not_stop_the_others(
    dsn: str, conn: Any, server: ModelServer, tmp_path: Path
) -> None:
    """pgedge-vectorizer#76, #78: one's bad configuration stalls all."""
    async with opened(dsn, server, tmp_path) as app:
        for table in ("apples", "pears"):
            await conn.execute(f"create table {table} (id bigint primary key, body text)")
            await conn.execute(f"insert into {table} select g, 'fruit ' || g from generate_series(1, 5) g")
            await added(app, table, "body")
            await app.forget(table)
        await conn.execute(
            "update instep.derivation set options = options || '{\"engine\": \"nonsense\"}' where name = 'apples.search'"
        )
        reports = {report.name: report for report in await app.run(observer=Recorder())}
        assert "nonsense" in reports["apples.embed"].configuration
        assert (reports["apples.embed"].exit_code, reports["pears.embed"].counters.indexed) == (1, 5)
        stop = Stop()
        running = asyncio.create_task(app.run(observer=Recorder(), stop=stop, follow=True))
        await conn.execute("insert into pears values (6, 'another')")
        assert await app.wait_until_in_sync("pears", "6", timeout=30)
        stop.finish()
        await running


async def test_c7_77_one_tables_provider_is_down_and_the_other_table_goes_on(
    dsn: str, conn: Any, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables with a model each, as behind a gateway that sends each model to a server of its own."""
    async with ModelServer("tei", model_name="instep/other-model", dimensions=DIMENSIONS) as other:
        urls = {one.model_name: one.url for one in (server, other)}

        def behind_a_gateway(provider: str, **settings: Any) -> Embedder:
            given = {**settings, "url": urls[settings["model"]], "sleep": _at_once}
            return create_embedder(provider, **given)

        monkeypatch.setattr("instep.catalogues.tables.workshop.create_embedder", behind_a_gateway)
        for table, its in (("apples", server), ("pears", other)):
            await conn.execute(f"create table {table} (id bigint primary key, body text)")
            await conn.execute(f"insert into {table} select g, 'fruit ' || g from generate_series(1, 5) g")
            async with opened(dsn, its, tmp_path) as app:
                await added(app, table, "body")
        server.faults.status = 503
        async with opened(dsn, server, tmp_path) as app:
            reports = {report.name: report for report in await app.run(observer=Recorder())}
            assert "503" in reports["apples.embed"].outage
            assert (reports["apples.embed"].counters.indexed, reports["apples.embed"].exit_code) == (0, 1)
            assert (reports["pears.embed"].counters.indexed, reports["pears.embed"].outage) == (5, "")
            stop = Stop()
            running = asyncio.create_task(app.run(observer=(told := Recorder()), stop=stop, follow=True))
            await conn.execute("insert into pears values (6, 'another')")
            assert await app.wait_until_in_sync("pears", "6", timeout=30)
            assert told.named("outage")
            stop.finish()
            await running
        entries = await conn.execute("select count(*), max(attempts) from instep.outbox_apples_embed")
        assert await entries.fetchone() == (5, 0)


async def test_c7_extra_a_table_that_is_added_under_a_worker_is_worked(
    dsn: str, conn: Any, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pgedge-vectorizer#10, #23: workers idle until they are told; enabled after the start, never served."""
    monkeypatch.setattr("instep.following.NEW_SECONDS", 0.2)
    async with opened(dsn, server, tmp_path) as app, opened(dsn, server, tmp_path) as person:
        stop = Stop()
        running = asyncio.create_task(app.run(observer=Recorder(), stop=stop, follow=True))
        await asyncio.sleep(0.5)
        await conn.execute("create table notes (id bigint primary key, body text)")
        await conn.execute("insert into notes values (1, 'pear')")
        await added(person, "notes", "body", engine="postgres")
        assert await person.wait_until_in_sync("notes", "1", timeout=30)
        stop.finish()
        assert [report.name for report in await running] == ["notes.embed", "notes.search"]


# Poison, and too large


async def test_c7_75_one_poison_text_of_ten_thousand(dsn: str, conn: Any, server: ModelServer) -> None:
    """9,999 done, one dead letter with the reason, calls bounded by the logarithm of a wave."""
    world = await world_of(dsn, conn, server)
    await world.insert(10_000)
    await conn.execute("update articles set title = 'poison' where id = 6543")
    server.faults.refuse = {"poison": 400}
    report = await ran(world)
    await world.embedder.close()
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (9_999, 1, 1)
    # 20 waves, and a wave may be claimed short; of the one with the poison two halves for each of nine steps, the
    # probe, and once more alone
    assert server.requests <= 20 + 4 + 2 * 9 + 2
    attempts, kind, error, dead = (await world.entries())[6543]
    assert (attempts, kind, dead) == (1, "input refused", True)
    assert error is not None
    assert "must not hold poison" in error


async def test_what_was_answered_is_not_sent_again_after_a_failure(
    dsn: str, conn: Any, server: ModelServer
) -> None:
    """A wave of 40 requests of which one is refused costs the others one time each."""
    world = await world_of(dsn, conn, server, batch=10, concurrency=1)
    await world.insert(400)
    await conn.execute("update articles set title = 'poison' where id = 200")
    server.faults.refuse = {"poison": 400}
    report = await ran(world)
    await world.embedder.close()
    assert (report.counters.indexed, report.counters.dead) == (399, 1)
    sent = Counter(server.texts)
    again = [text for text, times in sent.items() if times > 1 and text != "poison"]
    # Those that shared a request of ten with the poison text, on either side as the halves fall.
    assert len(again) <= 20


@pytest.mark.parametrize("fault", [{"max_tokens": 100}, {"max_batch": 7}])
async def test_c7_76_requests_that_are_too_large_are_split(
    dsn: str, conn: Any, server: ModelServer, fault: dict[str, int]
) -> None:
    """By tokens of the whole request (413, no figure) and by their number (422): nothing is cut, nothing fails, and
    what was learned holds for the next run."""
    world = await world_of(dsn, conn, server)
    await world.insert(200)
    for name, value in fault.items():
        setattr(server.faults, name, value)
    report = await ran(world)
    assert (report.counters.indexed, report.counters.truncated, report.exit_code) == (200, 0, 0)
    refused = server.requests
    await world.insert(200, first=201)
    server.forget()
    report = await ran(world)
    await world.embedder.close()
    assert report.counters.indexed == 200
    assert server.requests <= refused
    assert max(map(len, server.batches)) <= (7 if "max_batch" in fault else 60)


async def test_c7_76_one_text_that_no_server_takes_is_the_only_dead_letter(
    dsn: str, conn: Any, server: ModelServer
) -> None:
    """honcho PR#999, MaxKB#4296: a tokenizer that counts five times as many: split, shortened, and only what fails
    however short is dead."""
    world = await world_of(dsn, conn, server)
    await world.insert(60)
    await conn.execute("update articles set title = repeat('word ', 190) where id in (7, 8)")
    server.faults.max_text_tokens = 40
    report = await ran(world)
    assert (report.counters.indexed, report.counters.truncated, report.exit_code) == (60, 2, 0)
    server.faults.refuse = {"u": 413}
    await conn.execute("update articles set title = 'uuuuuu' where id = 9")
    report = await ran(world)
    await world.embedder.close()
    assert (report.counters.dead, report.exit_code) == (1, 1)
    assert (await world.entries())[9][1] == "input too large"


async def test_c7_79_an_error_with_nul_is_a_dead_letter_as_any(dsn: str, conn: Any) -> None:
    r"""awa#85, kestra PR#10653: \0 in an error's words kills the write that records it, for ever."""
    world = await World.make(dsn, conn, rows=3)

    def refuse(texts: Any) -> None:
        if "title 2" in texts:
            raise Permanent("bad \x00 words \ud800", kind="input refused")

    world.derivation.faults.on_compute = refuse
    report = await world.run()
    assert (report.counters.indexed, report.counters.dead) == (2, 1)
    entry = await world.entry(2)
    assert entry["failed_at"] is not None
    assert "words" in entry["last_error"]


async def test_c7_extra_a_deterministic_failure_is_not_retried_hot(
    dsn: str, conn: Any, server: ModelServer
) -> None:
    """pgedge-vectorizer#51, #52."""
    world = await world_of(dsn, conn, server)
    await world.insert(5)
    await conn.execute("update articles set title = 'poison' where id = 2")
    server.faults.refuse = {"poison": 400}
    stop = Stop()
    running = asyncio.create_task(ran(world, stop=stop, follow=True))

    async def dead() -> bool:
        settled = any(dead for *_, dead in (await world.entries()).values())
        return settled and len(await world.stamped()) == 4

    await until(dead)
    requests = server.requests
    await asyncio.sleep(1.5)
    assert server.requests == requests
    stop.finish()
    await running
    await world.embedder.close()
