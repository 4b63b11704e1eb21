"""The network swallows everything and closes nothing (PEERS C6 66 and 68, C2 33 and 34; psycopg#1371): a worker ends
or goes on within a bound that is measured from outside its process. The proxy goes on to acknowledge what it drops, so
keep-alives and tcp_user_timeout see a healthy connection: only a deadline of our own helps.

The bound: one answer's deadline and the cancellation that is not answered (3 s); the same again, at most 5 + 3 s, to
give back what is in hand, and for the last word. Some 20 s; the machine is shared: three times that.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli_scene import database
from database_scene import Scene, Worker, scene

from instep.testing.proxy import Proxy

ANSWER_SECONDS = 2.0
BOUND_SECONDS = 60.0

# What a client sends in each phase; forward: the server gets it, the answer is lost.
PHASES = {
    "absorb": (b'delete from "instep"."change_notes"', False),
    "claim": (b"claims = claims + 1", False),
    "claim answered": (b"claims = claims + 1", True),
    "load": (b"select k.place, s.short", False),
    "commit begins": (b"for share", False),
    "commit copies": (b"from stdin", False),
    "commit answered": (b'insert into "instep"."stamp_notes_embed"', True),
    "heartbeat": (b"set seen_at = now(), counters", False),
}
SHORT = ("claim", "load", "commit copies", "heartbeat")


@pytest.fixture
def databases(
    server_dsn: str,
    template: str,
) -> Iterator[list[str]]:
    """Five: phases are held up side by side, for a black hole costs time and no work."""
    with ExitStack() as stack:
        names = [f"t_{uuid.uuid4().hex[:12]}" for _ in range(5)]
        yield [stack.enter_context(database(server_dsn, name, template)) for name in names]


async def reached(sprung: asyncio.Event, worker: Worker) -> None:
    try:
        await asyncio.wait_for(sprung.wait(), 60)
    except TimeoutError:
        raise AssertionError(
            f"the phase was not reached by {worker.arguments}, which ended: {worker.code}"
        ) from None


async def swallowed(dsn: str, directory: Path, phase: str) -> float:
    """Run through a proxy that becomes a black hole in `phase`; the seconds from then to the end of the process."""
    marker, forward = PHASES[phase]
    await asyncio.to_thread(directory.mkdir)
    async with scene(dsn, directory, rows=300) as here, Proxy(dsn) as proxy:
        sprung = proxy.trap(marker, forward=forward)
        worker = await here.start(
            "run", "notes.embed", dsn=proxy.dsn, database_timeout_seconds=ANSWER_SECONDS, lease_seconds=30,
            call_timeout_seconds=30, batch_size=100,
        )  # fmt: skip
        ended = asyncio.create_task(worker.ended(BOUND_SECONDS))
        try:
            await reached(sprung, worker)
        except AssertionError as error:
            raise AssertionError(phase, worker.out, worker.err) from error
        began = time.monotonic()
        code = await ended
        seconds = time.monotonic() - began
        assert proxy.dropped > 0, phase
        assert code == 1, (phase, worker.out, worker.err)
        assert f"gave no answer within {ANSWER_SECONDS:g} s" in worker.err, (phase, worker.out, worker.err)
        assert await here.counted() == 0, phase
        proxy.restore()  # the server learns of the ends, and lets go what it had locked
        await healed(here)
        return seconds


async def healed(here: Scene) -> None:
    """What the dead worker held comes back with its lease; then all is done."""
    await here.rows("update instep.outbox_notes_embed set lease_until = now() where lease_until is not null")
    await here.rows("update instep.outbox_notes_search set lease_until = now() where lease_until is not null")
    worker = await here.run()
    assert worker.code == 0, (worker.out, worker.err)
    assert await here.in_step() == []


@pytest.mark.timeout(300)
async def test_c6_66_c6_68_a_worker_in_a_black_hole_ends(databases: list[str], tmp_path: Path) -> None:
    """In claim, load, commit and heartbeat, as a run of its own each; and one that is ended by SIGTERM meanwhile."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(swallowed(dsn, tmp_path / phase, phase))
            for dsn, phase in zip(databases, SHORT, strict=False)
        ]
        tasks.append(group.create_task(terminated(databases[-1], tmp_path / "terminated")))
    seconds = [task.result() for task in tasks]
    told = dict(zip((*SHORT, "SIGTERM"), (round(one, 1) for one in seconds), strict=True))
    print("seconds from the black hole (the signal) to the end of the worker:", told)
    assert max(seconds) < BOUND_SECONDS, told


async def terminated(dsn: str, directory: Path) -> float:
    """SIGTERM in a black hole: the asyncio cancellation that psycopg once swallowed for ever. With no deadline of ours
    set at all."""
    await asyncio.to_thread(directory.mkdir)
    async with scene(dsn, directory, rows=300) as here, Proxy(dsn) as proxy:
        worker = await here.start("run", "notes.embed", dsn=proxy.dsn, database_timeout_seconds=0)
        sprung = proxy.trap(PHASES["commit copies"][0])
        await reached(sprung, worker)
        began = time.monotonic()
        code = await worker.stop(signal.SIGTERM, BOUND_SECONDS)
        seconds = time.monotonic() - began
        assert code == 143, (worker.out, worker.err)
        proxy.restore()  # the server learns of the ends, and lets go what it had locked
        await healed(here)
        return seconds


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_c6_68_a_worker_in_a_black_hole_ends_in_the_other_phases(
    databases: list[str], tmp_path: Path
) -> None:
    others = [phase for phase in PHASES if phase not in SHORT]
    async with asyncio.TaskGroup() as group:
        for dsn, phase in zip(databases, others, strict=False):
            group.create_task(bounded(dsn, tmp_path / phase, phase))


async def bounded(dsn: str, directory: Path, phase: str) -> None:
    assert await swallowed(dsn, directory, phase) < BOUND_SECONDS


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_c2_34_a_worker_that_stays_goes_on_when_the_network_is_well_again(
    dsn: str, tmp_path: Path
) -> None:
    """Deaf in one connection alone (its claims), then in all: the same process finishes the work."""
    async with scene(dsn, tmp_path, rows=300) as here, Proxy(dsn) as proxy:
        settings = {"database_timeout_seconds": ANSWER_SECONDS, "lease_seconds": 5, "call_timeout_seconds": 5}
        worker = await here.start("worker", "--follow", dsn=proxy.dsn, **settings)
        sprung = proxy.trap(PHASES["claim"][0], alone=True)
        await reached(sprung, worker)
        await here.until_in_step(BOUND_SECONDS)
        await here.insert(300, first=301)
        sprung = proxy.trap(PHASES["load"][0])
        await reached(sprung, worker)
        await asyncio.sleep(4)
        assert worker.code is None
        proxy.restore()
        await here.until_in_step(BOUND_SECONDS)
        assert worker.code is None, worker.err
        assert await worker.stop(signal.SIGINT) == 0, (worker.out, worker.err)
