"""Whole runs of the engine over the toy derivation: the failure table of ENGINE.md, row by row, without HTTP."""

import asyncio
import time

import pytest
from psycopg import errors as pg
from world import World

from instep.engine import declared, finding
from instep.engine import run as run_module
from instep.engine.absorb import Absorber
from instep.engine.stopping import Stop
from instep.errors import Configuration, Outage, Permanent, Retryable
from instep.testing.toy import ToyDerivation


@pytest.fixture
async def world(dsn, conn):
    world = await World.make(dsn, conn)
    yield world
    for opened in world.opened:
        await opened.close()


async def test_everything_is_made_and_a_second_run_computes_nothing(world):
    await world.insert(1200)
    report = await world.run()
    assert (report.counters.indexed, report.pending, report.exit_code) == (1200, 0, 0)
    assert await world.in_step()
    calls = len(world.derivation.calls)
    again = await world.run()
    assert (again.counters.indexed, len(world.derivation.calls)) == (0, calls)


async def test_only_what_changed_is_worked(world):
    await world.insert(1000)
    await world.run()
    world.derivation.calls.clear()
    await world.conn.execute("update articles set title = 'changed ' || id where id <= 3")
    await world.conn.execute("delete from articles where id = 10")
    await world.conn.execute("update articles set published = false where id = 11")
    await world.conn.execute("update articles set other = other + 1")
    report = await world.run()
    assert (report.counters.indexed, report.counters.removed) == (3, 2)
    assert sum(len(call) for call in world.derivation.calls) == 3
    assert await world.in_step()


async def test_rows_written_without_triggers_are_found_by_the_sweep(world):
    await world.insert(10)
    await world.run()
    await world.conn.execute(
        "alter table articles disable trigger user; update articles set title = 'behind your back' where id = 4;"
        "delete from articles where id = 5; alter table articles enable trigger user"
    )
    await world.run()
    assert await world.in_step()


@pytest.mark.parametrize("size", [1, 2, 500])
async def test_one_bad_item_fails_alone(world, size):
    """PEERS C7 75: the others are done, the bad one is dead with the server's word, calls grow with log n."""
    await world.insert(size)
    await world.conn.execute("update articles set title = 'poison' where id = 1")

    def refuse(texts):
        if "poison" in texts:
            raise Permanent("server answered 400 'poison'", kind="input refused")

    world.derivation.faults.on_compute = refuse
    report = await world.run()
    entry = await world.entry(1)
    assert (report.counters.indexed, report.counters.dead, report.exit_code) == (size - 1, 1, 1)
    assert (entry["error_kind"], entry["last_error"], entry["attempts"]) == (
        "input refused", "server answered 400 'poison'", 1,
    )  # fmt: skip
    assert len(world.derivation.calls) + world.derivation.probes <= 20


async def test_a_retryable_failure_costs_one_attempt_and_three_make_a_dead_letter(world):
    await world.insert(3)
    await world.conn.execute("update articles set title = 'flaky' where id = 2")

    def fail(texts):
        if "flaky" in texts:
            raise Retryable("not now", kind="busy")

    world.derivation.faults.on_compute = fail
    for attempt in (1, 2):
        report = await world.run()
        entry = await world.entry(2)
        assert (report.counters.failed, report.counters.dead, entry["attempts"]) == (1, 0, attempt)
        await world.conn.execute(
            "update instep.outbox_articles_embed set not_before = now() where not_before is not null"
        )
    report = await world.run()
    assert (report.counters.failed, report.counters.dead) == (0, 1)


async def test_an_outage_counts_nothing_and_releases_everything(world):
    await world.insert(700)

    def refuse(_):
        raise Outage("server refused connections")

    def probe():
        raise Outage("server refused connections")

    world.derivation.faults.on_compute, world.derivation.faults.on_probe = refuse, probe
    report = await world.run()
    assert (report.outage, report.exit_code) == ("server refused connections", 1)
    assert {(e["attempts"], e["claims"], e["token"], e["failed_at"]) for e in await world.entries()} == {
        (0, 0, None, None)
    }
    assert len(await world.entries()) == 700
    world.derivation.faults.on_compute = None
    assert (await world.run()).counters.indexed == 700


async def test_a_text_that_the_server_answers_with_500_is_no_outage(world):
    await world.insert(5)

    def fail(texts):
        if "title 3" in texts:
            raise Outage("server answered 500")

    world.derivation.faults.on_compute = fail
    report = await world.run()
    assert (report.counters.indexed, report.counters.failed, report.outage) == (4, 1, "")
    assert (await world.entry(3))["attempts"] == 1


@pytest.mark.parametrize(
    "error", [Configuration("401", setting="INSTEP_EMBED_API_KEY"), Permanent("400 unknown model")]
)
async def test_a_wrong_setting_dead_letters_nothing(world, error):
    await world.insert(40)

    def refuse(_=None):
        raise error

    world.derivation.faults.on_compute = world.derivation.faults.on_probe = refuse
    report = await world.run()
    assert report.configuration
    assert report.exit_code == 1
    assert {(e["attempts"], e["failed_at"], e["token"]) for e in await world.entries()} == {(0, None, None)}


async def test_an_item_that_compute_names_itself_is_tried_alone_once(world):
    await world.insert(6)
    world.derivation.faults.refused = frozenset({"title 2"})
    report = await world.run()
    assert (report.counters.indexed, report.counters.dead) == (5, 1)
    assert [call for call in world.derivation.calls if "title 2" in call] == [
        [f"title {i}" for i in (6, 5, 4, 3, 2, 1)], ["title 2"],
    ]  # fmt: skip


async def test_a_defect_in_one_item_does_not_stop_the_others(world):
    await world.insert(20)

    def fail(texts):
        if "title 7" in texts:
            raise ZeroDivisionError("division by zero")

    world.derivation.faults.on_compute = fail
    report = await world.run()
    assert (report.counters.indexed, report.counters.failed) == (19, 1)
    assert (await world.entry(7))["error_kind"] == "ZeroDivisionError"


async def test_c4_51_a_database_error_while_committing_one_item_is_recorded_with_its_attempt(world):
    """PEERS C4 51: never 'current transaction is aborted'."""
    await world.insert(20)
    await world.conn.execute("alter table instep.toy add constraint no_seven check (shout <> 'TITLE 7')")
    report = await world.run()
    entry = await world.entry(7)
    assert (report.counters.indexed, report.counters.failed, entry["attempts"]) == (19, 1, 1)
    assert "no_seven" in entry["last_error"]


async def test_a_wave_that_runs_out_of_time_is_abandoned_uncounted(world):
    await world.insert(4)
    world.derivation.faults.held = asyncio.Event()
    report = await world.run(call_timeout_seconds=0.2)
    assert (report.counters.abandoned, report.counters.failed, report.exit_code) == (4, 0, 1)
    assert {(e["attempts"], e["claims"], e["token"]) for e in await world.entries()} == {(0, 0, None)}
    assert all(e["not_before"] is not None for e in await world.entries())
    (event,) = world.recorder.named("abandoned")
    assert (event["stage"], event["budget_seconds"], event["size"]) == ("compute", 0.2, 4)


async def test_a_change_during_compute_is_worked_again(world):
    """PEERS C1 1: the final output is of the new text; C1 5: a deleted row leaves no orphan, and nobody waits."""
    await world.insert(3)
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run())
    await world.derivation.faults.arrived.wait()
    await asyncio.sleep(0.3)
    open_for_long = (
        "select query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and xact_start < now() - interval '0.2 s'"
    )
    assert await (await world.conn.execute(open_for_long)).fetchall() == []
    await world.conn.execute("set lock_timeout = '100ms'")
    await world.conn.execute("update articles set title = 'new text' where id = 1")
    await world.conn.execute("delete from articles where id = 2")
    await world.absorb()
    world.derivation.faults.held.set()
    await running
    assert await world.in_step()


async def test_truncate_during_compute_leaves_nothing(world):
    await world.insert(3)
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run())
    await world.derivation.faults.arrived.wait()
    await world.conn.execute("set lock_timeout = '500ms'; truncate articles")
    world.derivation.faults.held.set()
    await running
    await world.run()
    assert await world.outputs() == {}


async def test_sigint_finishes_what_is_computed_and_releases_what_is_loaded(world):
    await world.insert(30)
    stop = Stop()
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run(stop=stop, batch=10))
    await world.derivation.faults.arrived.wait()
    stop.finish()
    world.derivation.faults.held.set()
    report = await running
    assert (report.counters.indexed, report.interrupted, report.pending) == (10, True, 20)
    assert {(e["claims"], e["token"]) for e in await world.entries()} == {(0, None)}


async def test_cancellation_releases_everything_uncounted(world):
    """SIGTERM: PEERS C2 21, C6 69."""
    await world.insert(30)
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run(batch=10))
    await world.derivation.faults.arrived.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(await world.entries()) == 30
    assert {(e["claims"], e["attempts"], e["token"], e["lease_until"]) for e in await world.entries()} == {
        (0, 0, None, None)
    }


async def test_an_outage_clears_what_is_to_be_cleared_all_the_same(world):
    await world.insert(5)
    await world.run()
    await world.conn.execute(
        "delete from articles where id = 1; update articles set title = 'x' where id = 2"
    )

    def refuse(_=None):
        raise Outage("down")

    world.derivation.faults.on_compute = world.derivation.faults.on_probe = refuse
    report = await world.run()
    assert (report.counters.removed, report.outage) == (1, "down")
    assert 1 not in await world.outputs()


async def test_follow_picks_up_changes_and_ends_when_told(world):
    await world.insert(5)
    stop = Stop()
    running = asyncio.create_task(world.run(stop=stop, follow=True))
    async with asyncio.timeout(20):
        while not await world.in_step():
            await asyncio.sleep(0.05)
        await world.conn.execute("update articles set title = 'followed' where id = 3")
        await world.conn.execute("delete from articles where id = 4")
        while not await world.in_step():
            await asyncio.sleep(0.05)
    stop.finish()
    report = await running
    assert (report.counters.indexed, report.counters.removed, report.exit_code) == (6, 1, 0)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_stream_that_never_ends_holds_up_nothing(world, monkeypatch, follow):
    """Something is in the log whenever it is looked at: a run ends all the same, and one that follows looks at its
    triggers, and batches what comes instead of taking it row by row."""
    await world.insert(50)
    writer, absorb, looks, verified = await world.dedicated(), Absorber.absorb, [], []
    verify = finding.install.verify

    async def absorbing(absorber, conn, limit=2000):
        await writer.execute("update articles set title = title || '.' where id = %s", (len(looks) % 50 + 1,))
        looks.append(await absorb(absorber, conn, limit))
        return looks[-1]

    async def verifying(conn, name):
        verified.append(name)
        return await verify(conn, name)

    monkeypatch.setattr(Absorber, "absorb", absorbing)
    monkeypatch.setattr(finding.install, "verify", verifying)
    monkeypatch.setattr(finding, "VERIFY_SECONDS", 0.3)
    stop = Stop()
    running = asyncio.create_task(world.run(stop=stop, follow=follow))
    async with asyncio.timeout(20):
        while follow and len(verified) < 4:
            await asyncio.sleep(0.02)
        stop.finish() if follow else None
        report = await running
    assert all(look.taken for look in looks)
    assert report.exit_code == 0
    assert len(looks) < 60  # some 20 with --follow: a look for each poll of 0.05 s


async def test_what_is_due_is_let_in_while_a_drain_goes_on(world, monkeypatch):
    """A worker that never catches up (a backfill, a steady overload) tries parked entries again all the same."""
    await world.insert(120)
    await world.absorb()
    await world.conn.execute(
        "update instep.outbox_articles_embed set not_before = now() + interval '0.3 s' where key_1 = 120"
    )
    monkeypatch.setattr(run_module, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(world.derivation.faults, "on_compute", lambda texts: time.sleep(0.02))
    await world.run(batch=1)
    order = [text for call in world.derivation.calls for text in call]
    assert len(order) == 120
    assert order.index("title 120") < 90  # not after all the others


async def test_follow_outlasts_an_outage(world, monkeypatch):
    monkeypatch.setattr("instep.engine.out.PAUSE_SECONDS", (0.05, 0.1))
    await world.insert(5)

    def refuse(_=None):
        raise Outage("down")

    world.derivation.faults.on_compute = world.derivation.faults.on_probe = refuse
    stop = Stop()
    running = asyncio.create_task(world.run(stop=stop, follow=True))
    async with asyncio.timeout(20):
        while not world.recorder.named("outage"):
            await asyncio.sleep(0.05)
        world.derivation.faults.on_compute = world.derivation.faults.on_probe = None
        while not await world.in_step():
            await asyncio.sleep(0.05)
    stop.finish()
    assert (await running).counters.indexed == 5


async def test_leases_of_waves_in_hand_are_renewed(world, monkeypatch):
    """PEERS C3 42: a wave longer than its lease is worked once."""
    monkeypatch.setattr("instep.engine.run.BEAT_SECONDS", 0.05)
    await world.insert(4)
    world.derivation.faults.held = asyncio.Event()
    running = asyncio.create_task(world.run(lease_seconds=0.5))
    await world.derivation.faults.arrived.wait()
    await asyncio.sleep(1.0)
    assert not await world.outbox().claim(world.conn, 10, 99)
    world.derivation.faults.held.set()
    report = await running
    assert (report.counters.indexed, report.counters.superseded) == (4, 0)


async def test_two_workers_share_the_work(world):
    await world.insert(900)
    reports = await asyncio.gather(world.run(batch=50), world.run(batch=50))
    assert sum(report.counters.indexed for report in reports) == 900
    assert await world.in_step()


async def test_a_new_change_replays_a_dead_letter_by_itself(world):
    await world.insert(3)
    world.derivation.faults.refused = frozenset({"title 2"})
    await world.run()
    assert (await world.entry(2))["failed_at"] is not None
    await world.conn.execute("update articles set title = 'mended' where id = 2")
    report = await world.run()
    assert (report.counters.indexed, report.exit_code) == (1, 0)
    assert await world.in_step()


async def test_a_run_leaves_its_row(world):
    await world.insert(3)
    await world.run()
    row = await (await world.conn.execute("select outcome, counters->>'indexed' from instep.run")).fetchone()
    assert row == ("ok", "3")


async def _condition_that_may_fail(world):
    await world.conn.execute(
        "create function readable(int) returns bool language plpgsql as "
        "$$ begin if $1 < 0 then raise division_by_zero; end if; return true; end $$;"
        "update instep.derivation set eligible = 'readable(other)'"
    )
    (declaration,) = await declared.read_declarations(world.conn, world.source)
    world.derivation = ToyDerivation(declaration, "title")


async def test_a_row_that_the_sweep_buries_is_counted_as_newly_dead_once(world):
    """Run summary, exit code and dead letters agree (invariant 5)."""
    await _condition_that_may_fail(world)
    await world.conn.execute("insert into articles (id, title, other) values (4, 'x', -1)")
    await world.conn.execute("delete from instep.change_articles")
    report = await world.run()
    assert (report.counters.dead, report.exit_code) == (1, 1)
    assert (await world.entry(4))["error_kind"] == "unreadable row"
    again = await world.run()
    assert (again.counters.dead, again.exit_code) == (0, 0)


async def test_a_condition_that_fails_everywhere_is_a_configuration_error(world):
    """The sweep's own refusal reaches the report; it is no defect."""
    await _condition_that_may_fail(world)
    await world.conn.execute(
        "insert into articles (id, title, other) select g, 'x', -1 from generate_series(1, 300) g"
    )
    report = await world.run()
    assert "division_by_zero" in report.configuration
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("error", "report_of"),
    [
        (pg.UndefinedColumn("column title does not exist"), "configuration"),
        (pg.InsufficientPrivilege("permission denied"), "configuration"),
        (pg.DeadlockDetected("deadlock detected"), "outage"),
    ],
)
async def test_trouble_that_is_no_items_is_neither_halved_nor_counted(world, error, report_of):
    """A column dropped in the middle of a run must not dead-letter a catalogue, though the probe is well."""
    await world.insert(20)

    def fail(_):
        raise error

    world.derivation.faults.on_load = fail
    report = await world.run()
    assert str(error) in getattr(report, report_of)
    assert (report.counters.failed, report.counters.dead, report.exit_code) == (0, 0, 1)
    assert {(e["attempts"], e["token"], e["failed_at"]) for e in await world.entries()} == {(0, None, None)}
    assert world.derivation.probes == 0
