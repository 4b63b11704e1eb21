"""SIGTERM in each await gives everything back at once and counts nothing; a run that is over ends, always."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fault_points import CHANGED, FAILED, PARKED, RELEASED, RENEWED, SEARCH_INDEX
from fault_scene import Scene, Stage, wait_for
from run_many import BOUND, KINDS
from test_kill_indexes import index_is_right, outside

from instep.testing.proxy import Proxy

LATENCY = 0.012  # seconds, there and back: procrastinate#1591 hung at it
TERMINATED = 143
ENDS = (
    20.0  # seconds that a worker may take to end after SIGTERM; ten of them for a server that does not answer
)

SHORT = (
    "run.started", "absorb.taken", "sweep.enqueued", "claim.taken", "claim.committed", "load.stamps", "compute.begun",
    "commit.begun", "commit.written", "commit.finished", "commit.committed",
)  # fmt: skip
"""Eleven here and nine runs over the latency; the long form takes all, and the second time that a worker comes by."""

PLACES = [
    *SHORT,
    *(pytest.param(point, marks=pytest.mark.torture) for point in CHANGED if point not in SHORT),
    *(
        pytest.param(f"{point}:2", marks=pytest.mark.torture)
        for point in CHANGED
        if not point.startswith("run.")
    ),
]


def owned(scene: Scene) -> list[tuple[Any, ...]]:
    """Entries that are not claimable at this moment, or that were charged anything."""
    return [
        row
        for outbox in scene.outboxes()
        for row in scene.sql(
            f"select key_1, token, lease_until, not_before, claims, attempts from instep.{outbox} where token is not null"
            " or lease_until is not null or not_before is not null or claims > 0 or attempts > 0 or failed_at is not null"
        )
    ]


def terminated_at(scene: Scene, point: str) -> None:
    """It is stopped at the point, so that the signal is there before the next await begins."""
    name, _, hit = point.partition(":")
    child = scene.start("run", "articles", failpoint=f"{name}:{hit or 1}:stop", INSTEP_LEASE_SECONDS="600")
    child.stopped()
    child.signal(signal.SIGTERM)
    child.resume()
    if name == "run.finished":
        child.ended_in({0, TERMINATED}, ENDS)  # there is nothing left to be cancelled
    else:
        child.ended(TERMINATED, ENDS)
    assert owned(scene) == []


@pytest.mark.parametrize("point", PLACES)
def test_c2_21_c6_69_sigterm_gives_everything_back(scene: Scene, point: str) -> None:
    scene.write()
    terminated_at(scene, point)
    scene.run("run", "articles")  # at once: no lease is waited for
    scene.in_step()


@pytest.mark.torture
@pytest.mark.parametrize("point", [*RENEWED, *RELEASED])
def test_c6_69_sigterm_while_leases_are_renewed_or_given_back(scene: Scene, point: str) -> None:
    scene.write()
    scene.model.server.hold()
    lease = {"INSTEP_LEASE_SECONDS": "2"}
    child = scene.start("run", "articles.embed", failpoint=f"{point}:1:stop", **lease)
    wait_for(lambda: scene.model.server.active > 0)
    if point in RELEASED:
        child.signal(signal.SIGTERM)
        child.stopped()
    else:
        child.stopped()
        child.signal(signal.SIGTERM)
    child.resume()
    child.ended(TERMINATED, ENDS)
    assert owned(scene) == []
    scene.model.release()
    scene.run("run", "articles")
    scene.in_step()


def held(scene: Scene) -> list[tuple[Any, ...]]:
    return scene.sql(
        "select key_1, token, lease_until from instep.outbox_articles_embed where token is not null or lease_until is not null"
    )


@pytest.mark.torture
@pytest.mark.parametrize("point", PARKED)
def test_c6_69_sigterm_while_it_parks(scene: Scene, point: str) -> None:
    """Parked or given back: held by nobody, and counted by nobody."""
    scene.write()
    scene.model.server.hold()
    budget = {"INSTEP_CALL_TIMEOUT_SECONDS": "0.4", "INSTEP_LEASE_SECONDS": "600"}
    child = scene.start("run", "articles.embed", failpoint=f"{point}:1:stop", **budget)
    child.stopped()
    child.signal(signal.SIGTERM)
    child.resume()
    child.ended(TERMINATED, ENDS)
    assert held(scene) == []
    assert scene.sql("select key_1 from instep.outbox_articles_embed where attempts > 0") == []
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


@pytest.mark.torture
@pytest.mark.parametrize("point", FAILED)
def test_c6_69_sigterm_while_it_records_a_failure(scene: Scene, point: str) -> None:
    """The failure is recorded once, or not yet; the others of the wave are given back, uncounted."""
    scene.write("update articles set title = 'poison' where id = 3")
    scene.write("update articles set title = 'new ' || title where id in (1, 2, 4)")
    scene.model.server.faults.refuse = {"poison": 400}
    scene.failed = {(3,)}
    child = scene.start("run", "articles.embed", failpoint=f"{point}:1:stop", INSTEP_LEASE_SECONDS="600")
    child.stopped()
    child.signal(signal.SIGTERM)
    child.resume()
    child.ended(TERMINATED, ENDS)
    assert held(scene) == []
    counted = "select key_1, attempts from instep.outbox_articles_embed where attempts > 0"
    assert scene.sql(counted) in ([], [(3, 1)])
    scene.run("run", "articles", code=None)
    assert scene.sql(counted) == [(3, 1)]
    scene.in_step()


@pytest.mark.torture
@pytest.mark.parametrize("point", SEARCH_INDEX)
def test_c2_21_sigterm_while_an_index_is_written(stage: Stage, point: str) -> None:
    with stage.scene(outside) as scene:
        scene.write()
        name = f"{point}:1:stop"
        child = scene.start("run", "articles", failpoint=name, INSTEP_LEASE_SECONDS="600")
        child.stopped()
        child.signal(signal.SIGTERM)
        child.resume()
        child.ended_in({0, TERMINATED}, ENDS)
        assert owned(scene) == []
        assert scene.sql("select * from instep.exclusive") == [], "the hold was given back too"
        scene.run("run", "articles")
        scene.in_step()
        assert index_is_right(scene)


async def many(scene: Scene, proxy: Proxy, runs: int, seed: int) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        **scene.environment,
        "DATABASE_URL": proxy.dsn,
        "INSTEP_LEASE_SECONDS": "600",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("run_many.py")), str(runs), str(seed), scene.dsn,
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


async def driven(scenes: Sequence[Scene], runs: int) -> list[dict[str, Any]]:
    proxies = [Proxy(scene.dsn) for scene in scenes]
    for proxy in proxies:
        await proxy.start()
        proxy.delay = LATENCY / 2
    try:
        each = [
            many(scene, proxy, runs, seed)
            for seed, (scene, proxy) in enumerate(zip(scenes, proxies, strict=True))
        ]
        return [run for told in await asyncio.gather(*each) for run in told]
    finally:
        for proxy in proxies:
            await proxy.stop()


def bounded(stage: Stage, runs: int, processes: int) -> None:
    """`runs` in all, each over a connection with latency; each process on a database of its own."""
    with ExitStack() as stack:
        scenes = [stack.enter_context(stage.scene()) for _ in range(processes)]
        told = asyncio.run(driven(scenes, runs // processes))
        assert_ended(told, runs)
        for scene in scenes:
            scene.run("run", "articles")
            scene.in_step()


def assert_ended(told: Sequence[dict[str, Any]], runs: int) -> None:
    assert len(told) == runs, "a run did not end"
    assert [run for run in told if run["owned"] or run["sessions"]] == []
    assert [run for run in told if run["outcome"] not in ("ok", "terminated")] == []
    assert {run["outcome"] for run in told if run["kind"] != "terminated"} == {"ok"}
    assert any(run["outcome"] == "terminated" for run in told), "no SIGTERM came in time"
    for kind in KINDS:
        seconds = [run["seconds"] for run in told if run["kind"] == kind]
        print(
            f"{kind}: {len(seconds)} runs, median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s"
        )
    assert max(run["seconds"] for run in told) < BOUND


def test_c6_67_run_once_ends_within_its_bound(stage: Stage) -> None:
    bounded(stage, 9, 1)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_c6_67_run_once_ends_within_its_bound_500_times(stage: Stage) -> None:
    bounded(stage, 500, 4)


@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.torture) for n in range(2, 11))])
async def test_c6_67_whole_processes_end_too(scene: Scene, number: int) -> None:
    async with Proxy(scene.dsn) as proxy:
        proxy.delay = LATENCY / 2
        scene.write()
        child = scene.start("run", "articles", dsn=proxy.dsn)
        await asyncio.to_thread(child.ended, 0, BOUND)
    await asyncio.to_thread(scene.in_step)
