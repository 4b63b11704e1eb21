"""The pause switch: of what it holds back and what not, and that it fails open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from world import World

from instep.engine import pause
from instep.engine.pause import Pause, Switch, covering
from instep.engine.ports import Conn, RunReport
from instep.engine.stopping import Stop
from instep.errors import Refused


@pytest.fixture
async def world(dsn: str, conn: Conn) -> AsyncIterator[World]:
    world = await World.make(dsn, conn, rows=5)
    yield world
    for opened in world.opened:
        await opened.close()


async def until(condition, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("scope", ["", "articles", "articles.embed"])
async def test_a_paused_run_claims_nothing_and_says_why(world: World, scope: str) -> None:
    await pause.pause(world.conn, scope, "the model is changed")
    report = await world.run()
    assert (report.paused, report.pending, report.exit_code) == ("the model is changed", 5, 0)
    assert world.derivation.calls == []
    assert {entry["claims"] for entry in await world.entries()} == {0}  # but they were found
    (told,) = world.recorder.named("paused")
    assert told["message"] == "the model is changed"
    row = await (await world.conn.execute("select outcome, detail from instep.run")).fetchone()
    assert row == ("interrupted", "paused: the model is changed")
    assert [one.scope for one in await pause.resume(world.conn, scope)] == [scope]
    assert not (await world.run()).paused
    assert await world.in_step()


async def test_a_pause_of_another_name_holds_nobody(world: World) -> None:
    await pause.pause(world.conn, "articles.search", "not ours")
    await pause.pause(world.conn, "article", "not ours either")
    assert not (await world.run()).paused
    assert await world.in_step()


async def test_the_wave_in_hand_is_finished(world: World) -> None:
    """And no other is begun: what was loaded ahead is given back."""
    world.derivation.faults.held = held = asyncio.Event()
    running = asyncio.create_task(world.run(batch=1))
    await world.derivation.faults.arrived.wait()
    await pause.pause(world.conn, "articles", "a moment")

    async def told() -> bool:
        return bool(world.recorder.named("paused"))

    await until(told)
    held.set()
    report: RunReport = await running
    assert report.counters.indexed == 1
    assert (report.paused, report.pending) == ("a moment", 4)
    entries = await world.entries()
    assert [(e["claims"], e["token"], e["attempts"]) for e in entries] == [(0, None, 0)] * 4


async def test_a_worker_that_stays_waits_and_goes_on(world: World) -> None:
    await pause.pause(world.conn, "", "for a while")
    stop = Stop()
    following = asyncio.create_task(world.run(stop=stop, follow=True))

    async def told() -> bool:
        return bool(world.recorder.named("paused"))

    await until(told)
    await asyncio.sleep(1.5)
    assert world.derivation.calls == []
    assert world.derivation.sink.finished == 0, "nothing is built while it is paused"
    await pause.resume(world.conn)
    await until(world.in_step)
    stop.finish()
    report = await following
    assert world.recorder.named("resumed")
    assert not report.paused


async def test_an_end_that_has_passed_is_no_pause(world: World) -> None:
    await pause.pause(world.conn, "articles", "short", timedelta(seconds=600))
    assert (await world.run()).paused.startswith("short (until ")
    await world.conn.execute("update instep.pause set until = now() - interval '1 second'")
    assert await pause.standing(world.conn) == []
    assert not (await world.run()).paused
    assert await pause.resume(world.conn, "articles") == [], "it was over already"


async def test_an_end_in_the_past_is_refused_and_changes_nothing(world: World) -> None:
    with pytest.raises(Refused, match="has passed"):
        await pause.pause(world.conn, "articles", "late", datetime(2020, 1, 1, tzinfo=UTC))
    assert await pause.standing(world.conn) == []


async def test_a_switch_that_cannot_be_read_stops_nobody(world: World) -> None:
    await world.conn.execute("alter table instep.pause rename to gone")
    report = await world.run()
    assert (report.exit_code, report.paused, report.pending) == (0, "", 0)
    assert await world.in_step()
    (told,) = world.recorder.named("pause unreadable")
    assert "instep.pause" in str(told["message"])


async def test_a_switch_that_becomes_unreadable_lets_go(world: World) -> None:
    switch = Switch(Stop(), "articles.embed", world.recorder)
    await pause.pause(world.conn, "articles", "x")
    assert await switch.look(world.conn)
    assert switch.finishing
    dead = await world.dedicated()
    await dead.close()
    assert not await switch.look(dead)
    assert not switch.finishing
    assert [name for name, _ in world.recorder.events] == ["paused", "pause unreadable", "resumed"]


async def test_a_second_pause_takes_the_place_of_the_first(world: World) -> None:
    first = await pause.pause(world.conn, "articles", "one")
    second = await pause.pause(world.conn, "articles", "two", timedelta(hours=1))
    assert (second.reason, second.since) == ("two", first.since)
    assert second.until is not None
    assert await pause.standing(world.conn) == [second]


async def test_resuming_what_a_wider_pause_holds_is_refused(world: World) -> None:
    await pause.pause(world.conn, "articles", "wide")
    await pause.pause(world.conn, "articles.embed", "narrow")
    with pytest.raises(Refused, match="articles is paused as a whole: wide"):
        await pause.resume(world.conn, "articles.embed")
    assert len(await pause.standing(world.conn)) == 2
    assert [one.scope for one in await pause.resume(world.conn)] == ["articles", "articles.embed"]
    assert await pause.resume(world.conn) == []


async def test_the_widest_pause_is_named(conn: Conn) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    pauses = [Pause(scope, scope, now, None) for scope in ("a.embed", "a", "", "b")]
    assert covering(pauses, "a.embed") == pauses[2]
    assert covering(pauses[:2], "a.embed") == pauses[1]
    assert covering(pauses[3:], "a.embed") is None


async def test_a_removed_source_takes_its_pauses_along(world: World) -> None:
    from instep.engine import install

    for scope in ("", "articles", "articles.embed"):
        await pause.pause(world.conn, scope, "x")
    await install.remove(world.conn, "articles")
    assert [one.scope for one in await pause.standing(world.conn)] == [""]
