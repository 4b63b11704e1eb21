"""The engine's doors: what a catalogue brings (Derivation, Sink) and what watches a run (Observer).

The engine calls load → compute → commit for a wave of entries and knows nothing of what they mean. Each port has a
conformance suite in `instep.testing` that the real implementations and the fakes both pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from instep.engine.declaration import Declaration, Key, Target
from instep.errors import Permanent

Conn = AsyncConnection[TupleRow]


class Entry(NamedTuple):
    """One claimed entry of an outbox."""

    key: Key
    generation: int
    claims: int
    sort_key: str  # text: -infinity is no Python datetime


class Item(NamedTuple):
    """What was loaded for one eligible entity: content and hash come from one statement."""

    key: Key
    hash: bytes
    content: Any
    size: int = 0  # bytes of content, for the memory bound


@dataclass(frozen=True, slots=True)
class Loaded:
    """A key of the wave that is in neither list does not exist or is not eligible any more: it is cleared."""

    items: Sequence[Item]
    deferred: Sequence[Key] = ()  # too much for this wave's memory: released, and claimed again


class Output(NamedTuple):
    """What one item became. `value` is for the sink; the two counts go into the run's counters."""

    key: Key
    hash: bytes  # of the content that was loaded: this is what gets stamped
    value: Any
    reused: int = 0  # parts that were not computed again
    truncated: int = 0  # parts that the model cut


class Sink(Protocol):
    """Where outputs go. `write` replaces what an entity had (the empty set included), is idempotent, never commits."""

    @property
    def transactional(self) -> bool:
        """True: written in the engine's transaction, exactly once. False: written before the entry's removal,
        at least once, by one drainer at a time (`engine/exclusive.py`)."""
        ...

    async def prepare(self, conn: Conn, target: Target) -> None:
        """Make the target's tables or index exist. Safe to call again."""
        ...

    async def intact(self, conn: Conn, target: Target) -> bool:
        """False: the output outside PostgreSQL is lost, older or newer than the database knows; everything is
        then made again."""
        ...

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None: ...

    async def finish(self, conn: Conn, target: Target) -> None:
        """Called when a run has drained: build the vector index after a first fill, merge segments, …"""
        ...

    async def drop(self, conn: Conn, target: Target) -> None:
        """Remove the target's outputs. Safe to call when they are gone."""
        ...


class Derivation(Protocol):
    @property
    def declaration(self) -> Declaration: ...

    @property
    def sink(self) -> Sink: ...

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        """Content and hash of the wave, in one statement for both. `stamped`: the hashes that outputs of this target
        were made from, read before. Content of an item whose hash equals its stamp is not looked at."""
        ...

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        """The whole wave at once, order kept, no transaction open. Raises only errors of `instep.errors`;
        returns a Permanent in the place of an item that is known to be the bad one."""
        ...

    async def probe(self, target: Target) -> None:
        """Work a fixed harmless input; raises what compute would. Tells an outage from a bad item."""
        ...


COUNTERS = (
    "enqueued",
    "indexed",
    "removed",
    "reused",
    "superseded",
    "truncated",
    "abandoned",
    "failed",
    "dead",
)


@dataclass(slots=True)
class Counters:
    """What a run did, in entries (reused and truncated: in parts, chunks say)."""

    enqueued: int = 0
    indexed: int = 0
    removed: int = 0
    reused: int = 0
    superseded: int = 0
    truncated: int = 0
    abandoned: int = 0
    failed: int = 0
    dead: int = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTERS}


@dataclass(slots=True)
class RunReport:
    """The outcome of one run of one derivation."""

    name: str
    counters: Counters = field(default_factory=Counters)
    pending: int = 0  # entries waiting when the run ended
    seconds: float = 0.0
    outage: str = ""  # the backend's own words, where the run stopped for an outage
    configuration: str = ""  # likewise, for a setting
    interrupted: bool = False
    paused: str = ""  # why, where the pause switch ended the run or kept it from starting a wave
    moved: bool = False  # the table has another name now: the statements must be made anew, then run again

    @property
    def exit_code(self) -> int:
        c = self.counters
        return 1 if c.failed or c.abandoned or c.dead or self.outage or self.configuration else 0

    @property
    def outcome(self) -> str:
        """As in instep.run."""
        if self.outage:
            return "outage"
        if self.configuration:
            return "configuration"
        if self.interrupted or self.paused:
            return "interrupted"
        return "failed" if self.exit_code else "ok"


class Connections(Protocol):
    """What a run needs of the database: connections of its own, which it closes."""

    async def dedicated(self) -> Conn: ...


class Observer(Protocol):
    """Told what a run does, as it does it: progress bars, heartbeat lines, metrics. Must not raise, must not wait."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None: ...
