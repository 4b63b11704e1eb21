"""The state machine: which operation of `model_world` is tried when. Rules choose, the world does.

A rule stands for a group of operations: Hypothesis leaves some rules out of each history, and a history without
`commit`, say, would show little. Operations that are likely to matter stand in a list more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from model_world import KEYS, World, Worker

TEXTS = ("alpha", "beta", "gamma", "delta", "poison", "poison", "", None)
WRITES = (*["update", "write"] * 4, *["bypass", "close_row", "delete", "slow_write"] * 2, "truncate")
POINTS = ("write", "write", "write", "embed", "embed", "load")

CHANGES = (
    ("update", "absorb"), ("update", "absorb"), ("write", "absorb"), ("update", ""), ("close_row", "absorb"),
    ("bypass", "sweep"), ("bypass", "sweep"), ("bypass", ""),
)  # fmt: skip

keys = st.sampled_from(KEYS)
texts = st.sampled_from(TEXTS)
picks = st.integers(0, 5)



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
    held = {key for worker in world.workers if worker.wave is not None for key in worker.keys}
    return sorted(held | {key for key, _ in world.dead_letters})


def at_gate(world: World) -> list[int]:
    return [
        number
        for number, actor in enumerate(world.stoppable)
        if actor.task is not None and actor.gate.reached.is_set()
    ]


def when(condition: Callable[[World], object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return precondition(lambda machine: bool(condition(machine.world)))


class EngineMachine(RuleBasedStateMachine):
    """`world` is set by the test."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.world.begin_history()
        for key in KEYS[:2]:
            self.do("write", key, "alpha")
        self.do("absorb", 2000)

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
            self.world.settle()
        except BaseException:
            self.world.abandon_history()
            raise

    def one(self, workers: Sequence[Worker], pick: int) -> int:
        return workers[pick % len(workers)].number

    @rule(key=keys, text=texts, what=st.sampled_from(WRITES), kind=st.sampled_from(("update", "upsert", "close", "delete")))
    def write(self, key: int, text: str | None, what: str, kind: str) -> None:
        values: dict[str, tuple[Any, ...]] = {
            "update": (key, text), "write": (key, text), "slow_write": (key, text), "bypass": (key, kind, text),
            "close_row": (key,), "delete": (key,), "truncate": (),
        }  # fmt: skip
        if what == "slow_write" and self.world.slow_key:
            self.do("slow_commit")
        else:
            self.do(what, *values[what])

    @rule(pick=picks, text=texts, how=st.sampled_from(CHANGES))
    @when(lambda world: concerned(world))
    def change_what_is_in_hand(self, pick: int, text: str | None, how: tuple[str, str]) -> None:
        """A row that a worker holds, or that has a dead letter: it changes, and the change is found, or not yet."""
        found = concerned(self.world)
        key = found[pick % len(found)]
        write, then = how
        values: dict[str, tuple[Any, ...]] = {
            "write": (key, text), "update": (key, text), "close_row": (key,), "bypass": (key, "update", text),
        }  # fmt: skip
        self.do(write, *values[write])
        if then:
            self.do(then, 2000 if then == "absorb" else 10_000)

    @rule(what=st.sampled_from(("absorb", "absorb", "absorb", "sweep", "sweep")), small=st.booleans())
    def find(self, what: str, small: bool) -> None:
        if what == "absorb":
            self.do("absorb", 1 if small else 2000)
        else:
            self.do("sweep", 1 if small else 10_000)

    @rule(pick=picks, place=picks)
    @when(lambda world: (world.waiting or world.parked) and idle(world))
    def claim(self, pick: int, place: int) -> None:
        self._claim(self.one(idle(self.world), pick), place)

    def _claim(self, number: int, place: int) -> None:
        world = self.world
        if place == 5 and not world.parked:
            self.do("let_in", number, "t1")  # as each drain does, to no avail
        elif world.waiting and not (world.parked and place > 3):
            names = sorted({target for _, target in world.waiting})
            self.do("claim", number, names[place % len(names)])
        elif world.parked:
            names = sorted({target for _, target in world.parked})
            self.do("let_in", number, names[place % len(names)])

    @rule(pick=picks)
    @when(held)
    def work(self, pick: int) -> None:
        self._work(pick)

    @rule(pick=picks)
    @when(held)
    def work_more(self, pick: int) -> None:
        self._work(pick)

    def _work(self, pick: int) -> None:
        number = self.one(held(self.world), pick)
        stage = self.world.workers[number].stage
        self.do({"claimed": "load", "loaded": "compute", "computed": "commit"}[stage], number)

    @rule(pick=picks, place=picks)
    @when(lambda world: held(world) and idle(world))
    def overtake(self, pick: int, place: int) -> None:
        """A lease runs out, and another worker claims."""
        number = self.one(held(self.world), pick)
        self.do("expire", number)
        self._claim(self.one(idle(self.world), pick), place % 4)

    @rule(pick=picks)
    @when(overtaken)
    def finish_late(self, pick: int) -> None:
        self.do("finish_late", self.one(overtaken(self.world), pick))

    @rule(pick=picks, what=st.sampled_from(("fail", "fail", "outage", "time_out", "renew", "expire", "crash")))
    @when(held)
    def be_in_trouble(self, pick: int, what: str) -> None:
        able = loaded(self.world) if what in ("fail", "outage") else held(self.world)
        if able:
            self.do(what, self.one(able, pick))

    @rule(pick=picks, point=st.sampled_from(POINTS))
    @when(held)
    def begin(self, pick: int, point: str) -> None:
        self.do("begin", self.one(held(self.world), pick), point)

    @rule(pick=picks)
    @when(at_gate)
    def go_on(self, pick: int) -> None:
        found = at_gate(self.world)
        self.do("go_on", found[pick % len(found)])

    @rule(what=st.sampled_from(("dead", "dead", "target", "target", "pause")), key=st.sampled_from((*KEYS, None)), pick=picks)
    def operate(self, what: str, key: int | None, pick: int) -> None:
        world = self.world
        if what == "dead" and world.dead_letters:
            self.do("discard" if pick == 5 else "replay", key)
        elif what == "pause" or world.paused:
            self.do("resume") if world.paused else self.do("pause", ("articles.embed", "articles", "", "other")[pick % 4])
        else:
            states = {target.state for target in world.targets.values()}
            if "filling" not in states and len(states) < 3 and pick < 3:
                self.do("retarget")
            elif "filling" in states and pick != 2:
                self.do("promote")
            else:
                self.do("retire", pick > 3)
