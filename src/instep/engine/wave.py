"""Load → compute → commit of one wave, and what a worker holds while it does so.

No transaction is open during `compute` (test_worker.py::test_no_transaction_is_open_while_the_model_works).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg

from instep import failpoints
from instep.clock import Clock
from instep.database.outages import is_serialization
from instep.engine.commit import Change, Committed, Committer
from instep.engine.declaration import Key, Target
from instep.engine.outbox import Failure, Outbox
from instep.engine.ports import Conn, Counters, Derivation, Entry, Item, Observer, Output
from instep.errors import Permanent

CLAIM_GRACE_SECONDS = 5.0  # that a cancelled run waits for a claim under way
COMMIT_TRIES = 5  # of a transaction that met a deadlock or a serialization failure


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one worker. Seconds; 0 means none for the call."""

    batch: int = 500
    lease_seconds: float = 900.0
    call_timeout_seconds: float = 600.0
    max_attempts: int = 3


@dataclass(slots=True)
class Wave:
    """One claimed batch. `entries` shrinks to what is still to be computed once the rest was committed."""

    token: int
    entries: list[Entry]
    alone: bool = False
    items: Sequence[Item] = ()
    cleared: Sequence[Key] = ()
    stamped: Mapping[Key, bytes] = field(default_factory=dict)

    def part(self, keys: set[Key]) -> list[Entry]:
        return [entry for entry in self.entries if entry.key in keys]


class Abandoned(Exception):
    """The budget of a whole wave ran out: nothing is counted, and it is not claimed again before its lease ends."""

    def __init__(self, stage: str, seconds: float, why: str = "") -> None:
        super().__init__(why or f"{stage} took longer than {seconds:g} s")
        self.stage, self.seconds = stage, seconds


class Hands:
    """The connections and the waves in hand of one worker on one target.

    The reader claims and loads, writers commit and record: waves are committed while the next is loaded. A connection
    serves one task at a time, which keeps transactions of concurrent tasks apart.
    """

    def __init__(
        self, derivation: Derivation, target: Target, reader: Conn, writers: Sequence[Conn], clock: Clock, limits: Limits, observer: Observer,
        counters: Counters,
    ) -> None:  # fmt: skip
        self.derivation, self.target, self.clock = derivation, target, clock
        self.limits, self.observer, self.counters = limits, observer, counters
        self.outbox = Outbox(
            derivation.declaration,
            target,
            clock,
            lease_seconds=limits.lease_seconds,
            max_attempts=limits.max_attempts,
        )
        self.committer = Committer(derivation.declaration, target, derivation.sink)
        self.in_hand: dict[int, set[Key]] = {}
        self._leased: dict[int, float] = {}  # when the lease of each wave in hand began, by our clock
        self.succeeded = 0  # entries: tells a timeout of one item from an outage
        self.writers = len(writers)
        self._reader, self._reading = reader, asyncio.Lock()
        self._writers: asyncio.Queue[Conn] = asyncio.Queue()
        for writer in writers:
            self._writers.put_nowait(writer)
        self._batch = limits.batch

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Conn]:
        async with self._reading:
            yield self._reader

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Conn]:
        writer = await self._writers.get()
        try:
            yield writer
        finally:
            self._writers.put_nowait(writer)

    def event(self, name: str, **fields: object) -> None:
        self.observer.event(
            name, {"derivation": self.derivation.declaration.name, "target": self.target.name, **fields}
        )

    async def claim(self) -> Wave | None:
        """The next wave, or None when nothing can be claimed. Suspects come last, each alone.

        A claim that is under way when the run is cancelled is waited for, so that what it took can be released
        (test_run.py::test_an_outage_counts_nothing_and_releases_everything)."""
        claiming = asyncio.ensure_future(self._claim())
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait([claiming], timeout=CLAIM_GRACE_SECONDS)
            if not done:
                claiming.cancel()  # left to its lease: the database does not answer
            elif (error := claiming.exception()) is not None:
                self.event("claim failed while stopping", message=str(error))
            raise

    async def _claim(self) -> Wave | None:
        token = self.clock.token()
        async with self.reading() as conn:
            entries = await self.outbox.claim(conn, self._batch, token)
            alone = not entries
            if alone:
                buried = await self.outbox.bury_lost(conn)  # awaited first: the counters change meanwhile
                self.counters.dead += buried
                entries = await self.outbox.claim_suspect(conn, token)
        if not entries:
            return None
        self.in_hand[token], self._leased[token] = {entry.key for entry in entries}, self.clock.monotonic()
        return Wave(token, entries, alone)

    async def load(self, wave: Wave) -> None:
        """Content and hash of the wave, after the claim. Commits at once what needs no computing: entities that are
        gone or no longer eligible, and those whose stamp already names this content; releases what is too much."""
        keys = [entry.key for entry in wave.entries]
        async with self._within("load"), self.reading() as conn:
            failpoints.reach("load.begun")
            wave.stamped = await self.committer.stamps(conn, keys)
            failpoints.reach("load.stamps")
            loaded = await self.derivation.load(conn, self.target, keys, wave.stamped)
            failpoints.reach("load.loaded")
        self._adapt(len(loaded.items), bool(loaded.deferred))
        if loaded.deferred:
            await self.release(wave.token, loaded.deferred)
        wave.items = loaded.items
        if wave.stamped:
            wave.items = [item for item in loaded.items if wave.stamped.get(item.key) != item.hash]
        if len(wave.items) == len(keys):
            return
        present, deferred = {item.key for item in loaded.items}, set(loaded.deferred)
        wave.cleared = [key for key in keys if key not in present and key not in deferred]
        to_compute = {item.key for item in wave.items}
        settled = [
            entry for entry in wave.entries if entry.key not in to_compute and entry.key not in deferred
        ]
        wave.entries = wave.part(to_compute)
        if settled:
            await self.commit(Change(wave.token, settled, cleared=wave.cleared), wave.stamped)

    async def compute(self, wave: Wave) -> Sequence[Output | Permanent]:
        """No transaction is open here. The result has the order of `wave.items`."""
        async with self._within("compute"):
            failpoints.reach("compute.begun")
            results = await self.derivation.compute(self.target, wave.items)
        failpoints.reach("compute.done")
        if len(results) != len(wave.items):
            raise RuntimeError(f"compute gave {len(results)} results for {len(wave.items)} items")
        return results

    async def commit(self, change: Change, stamped: Mapping[Key, bytes]) -> Committed:
        """Commit, again where the server asks for it, and count."""
        async with self._within("commit"), self.writing() as conn:
            for attempt in range(COMMIT_TRIES):
                try:
                    done = await self.committer.commit(conn, change)
                    break
                except psycopg.Error as error:
                    if not is_serialization(error) or attempt == COMMIT_TRIES - 1:
                        raise
        self._count(done, stamped)
        self.forget(change.token, [entry.key for entry in change.entries])
        return done

    def _count(self, done: Committed, stamped: Mapping[Key, bytes]) -> None:
        counters = self.counters
        counters.indexed += len(done.outputs)
        counters.removed += sum(key in stamped for key in done.cleared)
        counters.superseded += done.superseded
        counters.reused += sum([output.reused for output in done.outputs])
        counters.truncated += sum([output.truncated for output in done.outputs])
        self.succeeded += done.finished

    async def release(self, token: int, keys: Sequence[Key]) -> None:
        """Give back, uncounted."""
        async with self.writing() as conn:
            await self.outbox.release(conn, token, keys)
        self.forget(token, keys)

    async def park(self, token: int, keys: Sequence[Key]) -> None:
        async with self.writing() as conn:
            await self.outbox.park(conn, token, keys)
        self.forget(token, keys)

    async def fail(self, token: int, failures: Sequence[Failure]) -> None:
        """Record failures of entries tried alone, and count what was recorded."""
        async with self.writing() as conn:
            recorded = await self.outbox.fail(conn, token, failures)
        counters = self.counters
        counters.failed += recorded.failed
        counters.dead += recorded.dead
        counters.superseded += recorded.superseded
        self.forget(token, [failure.entry.key for failure in failures])
        for failure in failures:
            self.event("failed", key=failure.entry.key, kind=failure.kind, message=failure.message)

    async def probe(self) -> None:
        """A fixed harmless input through the same backend, in the wave's budget."""
        async with self._within("probe"):
            await self.derivation.probe(self.target)

    def forget(self, token: int, keys: Sequence[Key]) -> None:
        """These are not ours to renew or release any more."""
        held = self.in_hand.get(token)
        if held is not None:
            held.difference_update(keys)
            if not held:
                del self.in_hand[token]
                self._leased.pop(token, None)

    async def renew(self, conn: Conn) -> None:
        """Lengthen the leases of waves that have been in hand for a quarter of a lease: most are done long before,
        and a renewal waits for the commit that has their entries locked."""
        now = self.clock.monotonic()
        for token, keys in list(self.in_hand.items()):
            if now - self._leased.get(token, 0.0) >= self.limits.lease_seconds / 4:
                await self.outbox.renew(conn, token, sorted_keys(keys))
                if token in self.in_hand:
                    self._leased[token] = now

    def _adapt(self, loaded: int, deferred: bool) -> None:
        """Claim no more than fits the memory of a wave; grow again when it fits easily."""
        self._batch = max(1, loaded) if deferred else min(self.limits.batch, self._batch * 2)

    @asynccontextmanager
    async def _within(self, stage: str) -> AsyncIterator[None]:
        """The wave's budget. Classified by the deadline, not by the error's type. The server's own deadline for a
        statement is a budget too."""
        seconds = self.limits.call_timeout_seconds or None
        try:
            async with asyncio.timeout(seconds) as deadline:
                yield
        except TimeoutError as error:
            if deadline.expired():
                raise Abandoned(stage, seconds or 0.0) from error
            raise
        except psycopg.errors.QueryCanceled as error:
            raise Abandoned(stage, seconds or 0.0, f"{stage}: {error}") from error


def sorted_keys(keys: set[Key]) -> list[Key]:
    """Any fixed order will do: the statement locks in key order itself."""
    return sorted(keys, key=repr)
