"""What a history is played with: a clock, gates, a model and a derivation that can be stopped, and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.engine import pause
from instep.engine.declaration import Declaration, Key, Target
from instep.engine.ports import Conn, Item, Loaded, Output
from instep.engine.wave import Hands, Wave
from instep.errors import Outage, Permanent, Retryable
from instep.inference.ports import Embedded
from instep.inference.ports import Limits as ModelLimits
from instep.testing.model_server import vector_of

KEYS = (1, 2, 3)
DIMENSIONS = 4
SPEC = {"dimensions": DIMENSIONS, "type": "vector", "splitter": "1000c"}
NAME = "articles.embed"
OUTBOX, STAMP, CHANGE = (
    "instep.outbox_articles_embed",
    "instep.stamp_articles_embed",
    "instep.change_articles",
)
BATCHES = (1, 2, 3)  # of the three workers
LEASE = 900.0
MOST_TARGETS = 3
LOST_AFTER = 6  # claims without result, beyond which an entry may be dead for that
HANGS_AFTER = 30.0  # seconds

Operation = tuple[Any, ...]
"""A name and its arguments: a step of a trace."""

Place = tuple[int, str]  # key and target


class Broken(AssertionError):
    """An invariant does not hold; `name` says which."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"{name}: {detail}" if detail else name)
        self.name = name


class Clock:
    """Seeded by nothing: tokens count, time stands until it is moved."""

    def __init__(self) -> None:
        self.time, self.tokens = 0.0, 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.time

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def token(self) -> int:
        self.tokens += 1
        return self.tokens


class Gate:
    """Stops what passes the armed point until it is opened."""

    def __init__(self) -> None:
        self.armed = ""
        self.reached, self._opened = asyncio.Event(), asyncio.Event()

    def arm(self, point: str) -> None:
        self.armed = point
        self.reached.clear()
        self._opened.clear()

    async def passing(self, point: str) -> None:
        if point == self.armed:
            self.armed = ""
            self.reached.set()
            await self._opened.wait()
            self.reached.clear()

    def open(self) -> None:
        self.armed = ""
        self._opened.set()


class Model:
    """A deterministic embedder. Texts with the word poison are refused; `mode` makes all calls fail."""

    name = "model"

    def __init__(self, gate: Gate) -> None:
        self.limits = ModelLimits(32, 1, None, DIMENSIONS)
        self.gate, self.mode, self.calls = gate, "", 0

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embedded:
        self.calls += 1
        await self.gate.passing("embed")
        if self.mode == "outage":
            raise Outage("connection refused")
        if self.mode == "flaky":
            raise Retryable("it does so now and then")
        refused = {n: Permanent("400") for n, text in enumerate(texts) if "poison" in text}
        return Embedded(np.stack([vector_of(text, DIMENSIONS) for text in texts]), refused, ())

    async def probe(self) -> None:
        if self.mode == "outage":
            raise Outage("connection refused")

    async def dimensions(self) -> int:
        return DIMENSIONS

    def measure(self) -> None:
        return None

    async def close(self) -> None: ...


class GatedSink:
    """The chunk sink, with a gate before its write: target and entries are locked by then."""

    transactional = True

    def __init__(self, derivation: ChunkDerivation, gate: Gate) -> None:
        self._sink, self._gate = derivation.sink, gate

    async def prepare(self, conn: Conn, target: Target) -> None:
        await self._sink.prepare(conn, target)

    async def intact(self, conn: Conn, target: Target) -> bool:
        return await self._sink.intact(conn, target)

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        await self._gate.passing("write")
        await self._sink.write(conn, target, removed, outputs)

    async def finish(self, conn: Conn, target: Target) -> None:
        await self._sink.finish(conn, target)

    async def drop(self, conn: Conn, target: Target) -> None:
        await self._sink.drop(conn, target)


class GatedDerivation:
    """The chunk derivation, with a gate before its load: the stamps are read by then."""

    def __init__(self, declaration: Declaration, gate: Gate) -> None:
        self.model = Model(gate)
        self.inner = ChunkDerivation(declaration, lambda target: making_of(target, self.model))
        self.declaration, self.sink, self._gate = declaration, GatedSink(self.inner, gate), gate

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        await self._gate.passing("load")
        return await self.inner.load(conn, target, keys, stamped)

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        return await self.inner.compute(target, items)

    async def probe(self, target: Target) -> None:
        await self.inner.probe(target)


@dataclass
class Actor:
    """Who runs operations on connections of its own; `task` is one that stands at a gate or waits for a lock."""

    conns: list[Conn]
    gate: Gate = field(default_factory=Gate)
    task: asyncio.Task[None] | None = None


@dataclass
class Worker(Actor):
    number: int = 0

    derivation: GatedDerivation = None  # type: ignore[assignment]
    hands: dict[str, Hands] = field(default_factory=dict)
    switch: pause.Switch = None  # type: ignore[assignment]
    target: str = ""
    stage: str = "idle"  # claimed, loaded, computed
    wave: Wave | None = None
    results: Sequence[Output | Permanent] = ()
    overtaken: bool = False  # another worker has claimed an entry of the wave in hand

    def rest(self) -> None:
        self.stage, self.wave, self.results, self.overtaken = "idle", None, (), False
        self.derivation.model.mode = ""

    @property
    def keys(self) -> set[int]:
        return {entry.key[0] for entry in self.wave.entries} if self.wave else set()


async def fetch(conn: Conn, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return await (await conn.execute(statement.encode(), values or None)).fetchall()


async def fetch_one(conn: Conn, statement: str, *values: Any) -> tuple[Any, ...]:
    return (await fetch(conn, statement, *values))[0]
