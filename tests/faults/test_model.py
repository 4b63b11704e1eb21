"""The protocol, explored: the real engine under every interleaving that Hypothesis thinks of, and the proof that this
would notice if one guard were missing.

Invariants by plain SQL and Python (invariants.py, and each `Broken` of model_*.py). A fault prints its history; to look
into one, give it to `model_end.replay`. With -s each run prints how often each operation did something.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test
from model_end import replay
from model_guards import GUARDS, Guard, GuardMoved, without_code, without_sql
from model_machine import EngineMachine
from model_parts import Broken
from model_world import OPERATIONS, World
from psycopg import sql

from instep.engine.commit import Committer

TRACES = Path(__file__).parent / "traces"
AT_LEAST = 20  # times that each operation of issue 5 must have done something, "late" (below) among them
OTHERS_AT_LEAST = 5
OPERATIONS_WANTED = {
    "write", "update", "delete", "close_row", "retarget", "absorb", "sweep", "claim", "load", "compute", "commit", "fail",
    "outage", "expire", "finish_late", "late", "replay", "pause", "claim refused", "begin", "go_on",
}  # fmt: skip
SHORT, LONG, SEARCH = 200, 4000, 800  # histories
STEPS, FEW_STEPS = 40, 24  # of a history, at most; a long one often heals what a missing guard has done

pytestmark = pytest.mark.xdist_group("model")
every_guard = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)


@pytest.fixture(scope="module")
def world(server_dsn: str, template: str) -> Iterator[World]:
    """One database and its connections for all histories of this module: each begins by emptying the tables."""
    name = f"model_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    world = World(psycopg.conninfo.make_conninfo(server_dsn, dbname=name))
    yield world
    world.close()
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def explore(
    world: World,
    histories: int,
    steps: int = STEPS,
    *,
    seeded: bool = True,
    phases: tuple[Phase, ...] = (Phase.generate,),
) -> None:
    """Raises the first Broken, whose history is then in `world.trace`."""
    world.counts.clear()
    EngineMachine.world = world
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=steps,
            derandomize=seeded,
            phases=phases,
            deadline=None,
            database=None,
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def broken_by(world: World, trace: list[list[Any]]) -> str:
    """The name of the invariant that a history breaks, or nothing. What is no `Broken` is an error of the test."""
    try:
        replay(world, trace)
    except Broken as broken:
        return broken.name
    return ""


def saved(guard: Guard) -> dict[str, Any]:
    return json.loads((TRACES / f"{guard.name}.json").read_text("utf-8"))


def rarely_done(world: World) -> dict[str, int]:
    """Prints how often each operation did something; gives those that were done too rarely to mean anything. "late": a
    finish of any kind by a worker whose entry another had claimed anew."""
    told = {name: world.counts[name] for name in (*OPERATIONS, "late", "claim refused")}
    print("\n" + "\n".join(f"{name:<14}{count:>8}" for name, count in told.items()))
    wanted = {name: AT_LEAST if name in OPERATIONS_WANTED else OTHERS_AT_LEAST for name in told}
    return {name: count for name, count in told.items() if count < wanted[name]}


# The proof that the model bites


@every_guard
def test_without_its_guard_a_saved_history_breaks_an_invariant(world: World, guard: Guard) -> None:
    """And the same history passes with the guard, so it is the guard that keeps the invariant."""
    trace = saved(guard)
    with guard.off():
        broken = broken_by(world, trace["trace"])
    assert broken == trace["breaks"], f"without {guard.what}"
    assert broken in guard.breaks
    assert broken_by(world, trace["trace"]) == ""


def test_each_guard_has_its_history() -> None:
    assert {file.stem for file in TRACES.glob("*.json")} == {guard.name for guard in GUARDS}


def test_a_guard_that_is_not_where_it_was_is_no_proof() -> None:
    """A renamed guard must not look like one that nothing depends on."""
    with (
        pytest.raises(GuardMoved, match="stands there 0 times"),
        without_sql("commit.sql", "fence", ("no such text", "")),
    ):
        pass
    with pytest.raises(GuardMoved, match="stands there"), without_code(Committer, "_fence", ("self", "")):
        pass


@pytest.mark.torture
@pytest.mark.timeout(1800)
@every_guard
def test_a_search_finds_what_the_guard_is_for(world: World, guard: Guard) -> None:
    """Without any hint, in a fixed number of seeded histories; what it finds passes with the guard on."""
    with guard.off(), pytest.raises(Broken) as found:
        explore(world, SEARCH, FEW_STEPS)
    assert found.value.name in guard.breaks, found.value
    trace = [list(operation) for operation in world.trace]
    print(json.dumps(trace))
    with guard.off():
        assert broken_by(world, trace) in guard.breaks
    assert broken_by(world, trace) == ""


# The engine as it is


@pytest.mark.timeout(600)
def test_no_history_breaks_an_invariant(world: World) -> None:
    try:
        explore(world, SHORT)
    except Broken:
        print(json.dumps(world.trace))
        raise
    assert rarely_done(world) == {}


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_no_history_of_thousands_breaks_an_invariant(world: World) -> None:
    """Others each time: what it finds it prints, shrunk."""
    try:
        explore(world, LONG, seeded=False, phases=(Phase.generate, Phase.shrink))
    except Broken:
        print(json.dumps(world.trace))
        raise
    assert rarely_done(world) == {}
