"""The state machine: which operation of `model_world` is tried when. The machine chooses, the world does.

It is one rule that draws among the actions that are possible: Hypothesis leaves out about half of a machine's rules in
each history, and a history without claims, say, shows nothing. An action's weight says how often it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from model_end import settle
from model_parts import KEYS, Worker
from model_world import World

from instep.errors import Permanent

TEXTS = ("alpha", "beta", "gamma", "delta", "poison", "poison", "", None)
SCOPES = ("articles.embed", "articles", "", "other")
POINTS = ("write", "write", "write", "embed", "embed", "load")
CHANGES = (
    ("update", "absorb"), ("update", "absorb"), ("write", "absorb"), ("update", ""), ("close_row", "absorb"),
    ("bypass", "sweep"), ("bypass", "sweep"), ("bypass", "sweep"), ("bypass", ""), ("update", "sweep"),
)  # fmt: skip
NEXT = {"claimed": "load", "loaded": "compute", "computed": "commit"}

Action = Callable[["EngineMachine", st.DataObject], None]
ACTIONS: list[tuple[int, Callable[[World], object], Action]] = []


def action(
    weight: int, possible: Callable[[World], object] = lambda world: True
) -> Callable[[Action], Action]:
    def register(act: Action) -> Action:
        ACTIONS.append((weight, possible, act))
        return act

    return register


def idle(world: World) -> list[Worker]:
    return [worker for worker in world.workers if worker.task is None and worker.stage == "idle"]


def held(world: World) -> list[Worker]:
    return [worker for worker in world.workers if worker.task is None and worker.wave is not None]


def loaded(world: World) -> list[Worker]:
    return [worker for worker in held(world) if worker.stage == "loaded"]


def overtaken(world: World) -> list[Worker]:
    return [worker for worker in held(world) if worker.overtaken]


def concerned(world: World) -> list[int]:
    """Keys in somebody's hands, and those of dead letters."""
    in_hand = {key for worker in world.workers if worker.wave is not None for key in worker.keys}
    return sorted(in_hand | {key for key, _ in world.dead_letters})


def at_gate(world: World) -> list[int]:
    return [
        number
        for number, actor in enumerate(world.stoppable)
        if actor.task is not None and actor.gate.reached.is_set()
    ]


def claimable(world: World) -> object:
    return idle(world) and world.waiting


class EngineMachine(RuleBasedStateMachine):
    """`world` is set by the test."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.world.begin_history()

    def do(self, operation: str, *values: object) -> None:
        try:
            self.world.do(operation, *values)
        except BaseException:
            self.failed = True
            raise

    def teardown(self) -> None:
        if self.failed:
            self.world.abandon_history()
            return
        try:
            settle(self.world)
        except BaseException:
            self.world.abandon_history()
            raise

    @initialize(buried=st.booleans(), second=st.booleans())
    def begin(self, buried: bool, second: bool) -> None:
        """Two rows that wait, one of them bad; or it has its dead letter already. One target, or two."""
        self.do("write", 2, "poison")
        self.do("absorb", 2000)
        if buried:
            for operation, *values in (("claim", 0, "t1"), ("load", 0), ("compute", 0), ("commit", 0)):
                self.do(operation, *values)
        self.do("write", 1, "alpha")
        self.do("absorb", 2000)
        if second:
            self.do("retarget")

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        wanted = [act for weight, possible, act in ACTIONS for _ in range(weight) if possible(self.world)]
        data.draw(st.sampled_from(wanted))(self, data)


# The user


@action(3)
def write(machine: EngineMachine, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("write", "write", "update", "close_row", "delete")))
    key = data.draw(st.sampled_from(KEYS))
    values = (data.draw(st.sampled_from(TEXTS)),) if kind in ("write", "update") else ()
    machine.do(kind, key, *values)


@action(1)
def write_behind_the_triggers(machine: EngineMachine, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("update", "update", "upsert", "close", "delete")))
    machine.do("bypass", data.draw(st.sampled_from(KEYS)), kind, data.draw(st.sampled_from(TEXTS)))


@action(1)
def write_slowly(machine: EngineMachine, data: st.DataObject) -> None:
    if machine.world.slow_key:
        machine.do("slow_commit")
    elif data.draw(st.integers(0, 4)):
        machine.do("slow_write", data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from(TEXTS)))
    else:
        machine.do("truncate")


@action(6, concerned)
def change_what_is_in_hand(machine: EngineMachine, data: st.DataObject) -> None:
    """A row that a worker holds, or that has a dead letter: it changes, and the change is found, or not yet."""
    key = data.draw(st.sampled_from(concerned(machine.world)))
    kind, then = data.draw(st.sampled_from(CHANGES))
    text = data.draw(st.sampled_from(TEXTS))
    machine.do(kind, key, *{"bypass": ("update", text), "close_row": ()}.get(kind, (text,)))
    if then:
        machine.do(then, 2000 if then == "absorb" else 10_000)


# Finding work


@action(3)
def absorb(machine: EngineMachine, data: st.DataObject) -> None:
    machine.do("absorb", data.draw(st.sampled_from((2000, 2000, 1))))


@action(1)
def sweep(machine: EngineMachine, data: st.DataObject) -> None:
    machine.do("sweep", data.draw(st.sampled_from((10_000, 1))))


# The workers


@action(8, claimable)
def claim(machine: EngineMachine, data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([worker.number for worker in idle(machine.world)]))
    _claim(machine, data, number)


def _claim(machine: EngineMachine, data: st.DataObject, number: int) -> None:
    targets = sorted({target for _, target in machine.world.waiting})
    if targets:
        machine.do("claim", number, data.draw(st.sampled_from(targets)))


@action(1, idle)
def let_in(machine: EngineMachine, data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([worker.number for worker in idle(machine.world)]))
    parked = sorted({target for _, target in machine.world.parked})
    machine.do("let_in", number, data.draw(st.sampled_from(parked or ["t1"])))


@action(12, held)
def work(machine: EngineMachine, data: st.DataObject) -> None:
    worker = data.draw(st.sampled_from(held(machine.world)))
    machine.do(NEXT[worker.stage], worker.number)


@action(3, lambda world: held(world) and idle(world))
def overtake(machine: EngineMachine, data: st.DataObject) -> None:
    """A lease runs out, and another worker claims."""
    machine.do("expire", data.draw(st.sampled_from(held(machine.world))).number)
    _claim(machine, data, data.draw(st.sampled_from(idle(machine.world))).number)


@action(6, overtaken)
def finish_late(machine: EngineMachine, data: st.DataObject) -> None:
    """It ends its wave in one of the ways there are."""
    worker = data.draw(st.sampled_from(overtaken(machine.world)))
    ways = ["finish_late"] * 4 + ["time_out", "renew"]
    ways += ["fail", "outage"] if worker.stage == "loaded" else []
    machine.do(data.draw(st.sampled_from(ways)), worker.number)


@action(7, loaded)
def compute_in_vain(machine: EngineMachine, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(("fail", "fail", "fail", "outage", "outage")))
    machine.do(operation, data.draw(st.sampled_from(loaded(machine.world))).number)


@action(3, held)
def be_in_trouble(machine: EngineMachine, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(("time_out", "renew", "expire", "crash")))
    machine.do(operation, data.draw(st.sampled_from(held(machine.world))).number)


@action(4, held)
def begin(machine: EngineMachine, data: st.DataObject) -> None:
    worker, point = data.draw(st.sampled_from(held(machine.world))), data.draw(st.sampled_from(POINTS))
    refused = any(isinstance(result, Permanent) for result in worker.results)
    machine.do(
        "begin", worker.number, "embed" if refused else point
    )  # a refused item is tried once more, alone


@action(4, at_gate)
def go_on(machine: EngineMachine, data: st.DataObject) -> None:
    machine.do("go_on", data.draw(st.sampled_from(at_gate(machine.world))))


# The operator


@action(6, lambda world: world.dead_letters)
def replay_or_discard(machine: EngineMachine, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(("replay", "replay", "discard")))
    machine.do(
        operation, data.draw(st.sampled_from((None, *sorted({key for key, _ in machine.world.dead_letters}))))
    )


@action(2)
def change_targets(machine: EngineMachine, data: st.DataObject) -> None:
    states = [target.state for target in machine.world.targets.values()]
    possible = ["retarget"] if "filling" not in states and len(states) < 3 else []
    possible += ["promote"] if "filling" in states else []
    possible += ["retire"] if {"filling", "kept"} & set(states) else []
    operation = data.draw(st.sampled_from(possible or ["retire"]))
    machine.do(operation, *([data.draw(st.booleans())] if operation == "retire" else []))


@action(4, lambda world: at_gate(world) and len(world.targets) > 1)
def retire_in_the_middle(machine: EngineMachine, data: st.DataObject) -> None:
    """While somebody is at work for the target that is retired, or finds work for it."""
    machine.do("retire", False)


@action(10, lambda world: (world.absorber.task or world.sweeper.task) and len(world.targets) > 1)
def retire_while_work_is_found(machine: EngineMachine, data: st.DataObject) -> None:
    """An absorb or a sweep has read the targets, and waits for an entry's lock."""
    machine.do("retire", False)


@action(2, lambda world: held(world) and len(world.targets) > 1)
def retire_under_work(machine: EngineMachine, data: st.DataObject) -> None:
    """And the cleaning up takes long."""
    machine.do("retire", True)


@action(1)
def pause_or_resume(machine: EngineMachine, data: st.DataObject) -> None:
    if machine.world.paused:
        machine.do("resume")
    else:
        machine.do("pause", data.draw(st.sampled_from(SCOPES)))


@action(4, lambda world: world.paused)
def resume(machine: EngineMachine, data: st.DataObject) -> None:
    machine.do("resume")
