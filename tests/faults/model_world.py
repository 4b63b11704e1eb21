"""The real engine on real PostgreSQL, taken apart into its steps: what the state machine of test_model.py plays with.

Three workers hold waves by the engine's own Hands, Rescue and `drain`, each on connections of its own; claim, load,
compute and commit are single operations, and a step can be stopped in its middle (`begin`, at a gate of the
derivation's ports: before its load, its model call, its write) while others go on. Who meets a lock then waits,
as a real process would, until `go_on`.

Every operation is total: where it has nothing to do it does nothing and gives False. So a trace (a list of
operations) can be replayed on an engine that behaves differently, and none is "invalid".

`settle` ends a history: time passes, workers drain, and derived must be f(source): first, where the queue alone must
have sufficed, without a sweep, then with one. What is wrong is a `Broken` with the invariant's name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
import uvloop
from invariants import check, content_hash

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.chunks.names import chunk_tables
from instep.engine import declared, install, pause, sweep
from instep.engine.absorb import Absorber
from instep.engine.dead import DeadLetters
from instep.engine.declaration import Declaration, Key, KeyColumn, Source, Target
from instep.engine.failures import Stopped
from instep.engine.halving import Rescue, commit_good
from instep.engine.outbox import Outbox
from instep.engine.pipeline import drain
from instep.engine.ports import Conn, Counters, Item, Loaded, Output
from instep.engine.stopping import Stop
from instep.engine.sweep import Sweeper
from instep.engine.wave import Abandoned, Hands, Limits, Wave
from instep.errors import Outage, Permanent, Retryable
from instep.inference.ports import Embedded
from instep.inference.ports import Limits as ModelLimits
from instep.testing.model_server import vector_of
from instep.testing.toy import Recorder

KEYS = (1, 2, 3)
DIMENSIONS = 4
SPEC = {"dimensions": DIMENSIONS, "type": "vector", "splitter": "1000c"}
NAME = "articles.embed"
OUTBOX, STAMP, CHANGE = "instep.outbox_articles_embed", "instep.stamp_articles_embed", "instep.change_articles"
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

    async def write(self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]) -> None:
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


class World:
    """One database, reset for each history."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clock = Clock()
        self.counts: Counter[str] = Counter()  # of operations that did something, over all histories
        self.trace: list[Operation] = []
        self._run(self._make())

    def close(self) -> None:
        self._run(self._disconnect())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    # Making and resetting

    async def _make(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(
                "create table articles (id bigint primary key, title text, published boolean not null default true)"
            )
            (oid,) = await _row(conn, "select 'articles'::regclass::oid")
            self.source = Source("articles", oid, "public", "articles", (KeyColumn("id", "bigint"),))
            given = Declaration(
                NAME, self.source, 1, ("title", "published"), "instep.content_hash(instep.part(title))",
                "published", "", "tests", {"text": ["title"]},
            )  # fmt: skip
            made = await install.install(conn, self.source, [given], [Target(0, NAME, "t1", "reading", SPEC)])
            self.declaration = made.declarations[0]
            self.chunk_tables: dict[str, int] = {}
        await self._connect()

    async def _connect(self) -> None:
        opened = [await self._open() for _ in range(2 * len(BATCHES) + 6)]
        self._conns = opened
        self.eye, self.user, self.slow, *rest = opened  # the eye only looks; the user writes
        self.absorber, self.sweeper, self.admin = (Actor([rest.pop()]) for _ in range(3))
        self.workers = [
            Worker([rest.pop(), rest.pop()], number=number) for number in range(len(BATCHES))
        ]

    async def _open(self) -> Conn:
        conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        await conn.execute("set timezone = 'UTC'; set datestyle = 'ISO'")
        return conn

    async def _disconnect(self) -> None:
        tasks = [actor.task for actor in self.actors if actor.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for conn in self._conns:
            await conn.close()

    @property
    def actors(self) -> list[Actor]:
        return [*self.workers, self.absorber, self.sweeper, self.admin]

    @property
    def stoppable(self) -> list[Actor]:
        return [*self.workers, self.admin]

    def begin_history(self) -> None:
        """An empty table, one target, nobody at work."""
        self._run(self._reset())

    def abandon_history(self) -> None:
        """After a fault: whatever is under way is ended, or given up."""
        self._run(self._abandon())

    async def _abandon(self) -> None:
        try:
            await self.slow.execute("rollback")
            tasks = [actor.task for actor in self.actors if actor.task is not None]
            for actor in self.stoppable:
                actor.gate.open()
            async with asyncio.timeout(5):
                await asyncio.gather(*tasks, return_exceptions=True)
            for actor in self.actors:
                actor.task = None
        except (TimeoutError, psycopg.Error):
            await self._disconnect()
            await self._connect()

    async def _reset(self) -> None:
        for table in set(self.chunk_tables) - {"t1"}:
            await self._drop(table)
        emptied = ["articles", CHANGE, OUTBOX, STAMP, "instep.marker", "instep.pause"]
        if "t1" in self.chunk_tables:
            emptied += self._tables_of("t1")
        statements = [f"delete from {table}" for table in emptied]
        statements += [
            "delete from instep.target",
            "select setval(pg_get_serial_sequence('instep.target', 'id'), 1, false)",
            "update instep.derivation set sweep_due = null",
        ]
        await self.admin.conns[0].execute("; ".join(statements).encode())
        self.clock.time, self.clock.tokens = 0.0, 0
        self.trace, self.recorder = [], Recorder()
        self.failed: set[int] = set()  # keys whose present content has failed by a passing fault
        self.claimed: Counter[Place] = Counter()
        self.unseen: dict[Place, int] = {}  # what only a sweep finds, each numbered
        self.unseen_count = 0
        self.slow_key, self.paused = 0, False
        self.targets: dict[str, Target] = {}
        for actor in self.actors:
            actor.gate = Gate()
        for worker in self.workers:
            worker.derivation = GatedDerivation(self.declaration, worker.gate)
            worker.hands = {}
            worker.switch = pause.Switch(Stop(), NAME, self.recorder)
            worker.rest()
        self.absorbing = Absorber(self.source, [self.declaration])
        self.dead = DeadLetters(self.declaration)
        await self._add_target("t1")
        await self.look()

    async def _add_target(self, name: str) -> None:
        conn = self.admin.conns[0]
        async with conn.transaction():
            await declared.write_target(conn, Target(0, NAME, name, "", SPEC))
            await sweep.make_due(conn, f"target {name} added", derivation=NAME)
        await self._read_targets(conn)
        await self.workers[0].derivation.sink.prepare(conn, self.targets[name])
        self.chunk_tables[name] = self.targets[name].id

    async def _read_targets(self, conn: Conn) -> None:
        self.targets = {target.name: target for target in await declared.read_targets(conn, NAME)}

    def _tables_of(self, target: str) -> list[str]:
        tables = chunk_tables(self.declaration, Target(self.chunk_tables[target], NAME, target, ""))
        return [tables.chunk.as_string(None), tables.layout.as_string(None)]

    async def _drop(self, target: str) -> None:
        await self.admin.conns[0].execute(f"drop table if exists {', '.join(self._tables_of(target))}".encode())
        del self.chunk_tables[target]

    # Running operations

    def replay_trace(self, trace: Sequence[Operation]) -> None:
        """A whole history, its end included. Raises Broken."""
        self.begin_history()
        try:
            for operation, *values in trace:
                self.do(operation, *values)
            self.settle()
        except BaseException:
            self.abandon_history()
            raise

    def do(self, operation: str, *values: Any) -> bool:
        """One operation of a history; False where it had nothing to do. Raises Broken."""
        return bool(self._run(self._do(operation, values)))

    async def _do(self, operation: str, values: Sequence[Any]) -> bool:
        assert operation in OPERATIONS, operation
        self.trace.append((operation, *values))
        ran = await getattr(self, operation)(*values)
        await self._reap()
        await self.look()
        if ran:
            self.counts[operation] += 1
        return bool(ran)

    async def look(self) -> None:
        """What the outbox holds, for the machine's choice of operations."""
        rows = await _rows(self.eye, f"select key_1, target, failed_at is not null, not_before is not null from {OUTBOX}")
        self.dead_letters = {(key, target) for key, target, dead, _ in rows if dead}
        self.parked = {(key, target) for key, target, dead, parked in rows if parked and not dead}
        self.waiting = {(key, target) for key, target, dead, parked in rows if not dead and not parked}

    @property
    def held_up(self) -> bool:
        """Somebody stands in the middle of something, so others may meet his locks."""
        return bool(self.slow_key) or any(actor.task for actor in self.actors)

    async def _attempt(self, actor: Actor, work: Coroutine[Any, Any, None]) -> None:
        """Run it until it is done, stands at its gate or waits for a lock."""
        actor.task = asyncio.ensure_future(work)
        await self._until_still(actor)

    async def _until_still(self, actor: Actor) -> None:
        task, pids = actor.task, [conn.info.backend_pid for conn in actor.conns]
        assert task is not None
        deadline = asyncio.get_running_loop().time() + HANGS_AFTER
        while True:
            await asyncio.wait({task}, timeout=0.003)
            if task.done():
                actor.task = None
                actor.gate.armed = ""
                task.result()
                return
            if actor.gate.reached.is_set():
                return
            if await self._waits_for_another(pids):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Broken("hangs", f"{actor} in {self.trace[-1]}")

    async def _waits_for_another(self, pids: Sequence[int]) -> bool:
        """For one who stands at a gate, say. Looked up in the lock table: what a backend says of itself is late."""
        others = [conn.info.backend_pid for actor in self.actors for conn in actor.conns]
        (blocking,) = await _row(
            self.eye,
            "select coalesce(array_agg(b), '{}') from unnest(%s::int[]) p, unnest(pg_blocking_pids(p)) b",
            pids,
        )
        return bool(set(blocking) & {*others, self.slow.info.backend_pid} - set(pids))

    async def _reap(self) -> None:
        """Those who waited for a lock that is free now."""
        while True:
            before = [actor for actor in self.actors if actor.task is not None]
            for actor in before:
                if actor.task is not None and not actor.gate.reached.is_set():
                    await self._until_still(actor)
            if len([actor for actor in self.actors if actor.task is not None]) == len(before):
                return

    # The user

    async def write(self, key: int, text: str | None) -> bool:
        return await self._write(key, "upsert", text)

    async def update(self, key: int, text: str | None) -> bool:
        return await self._write(key, "update", text)

    async def delete(self, key: int) -> bool:
        return await self._write(key, "delete")

    async def close_row(self, key: int) -> bool:
        return await self._write(key, "close")

    async def bypass(self, key: int, kind: str, text: str | None) -> bool:
        """A write that capture does not see: only a sweep can find it."""
        async with self.user.transaction():
            wrote = await self._write(key, kind, text)
            mine = f"delete from {CHANGE} where xmin = pg_current_xact_id()::xid"
            await self.user.execute(mine.encode())
        if wrote:
            self._not_seen((key, target) for target in self.targets)
        return wrote

    async def truncate(self) -> bool:
        """Leaves no keys, but a marker: a sweep is due."""
        if self.held_up:
            return False
        await self.user.execute("truncate articles")
        self._not_seen((key, target) for key in KEYS for target in self.targets)
        self.failed.clear()
        return True

    async def slow_write(self, key: int, text: str | None) -> bool:
        """A transaction that stays open: what it wrote becomes visible late."""
        if self.slow_key:
            return False
        await self.slow.execute("begin")
        self.slow_key = key
        await self.slow.execute(*_statement("upsert", key, text))
        return True

    async def slow_commit(self) -> bool:
        if not self.slow_key:
            return False
        await self.slow.execute("commit")
        self._captured(self.slow_key)
        self.slow_key = 0
        return True

    async def _write(self, key: int, kind: str, text: str | None = None) -> bool:
        if key == self.slow_key:
            return False
        cursor = await self.user.execute(*_statement(kind, key, text))
        if cursor.rowcount:
            self._captured(key)
        return bool(cursor.rowcount)

    def _captured(self, key: int) -> None:
        """It is in the log: whatever went before, the queue has this row now, for all targets."""
        self.failed.discard(key)
        for place in [place for place in self.unseen if place[0] == key]:
            del self.unseen[place]

    def _not_seen(self, places: Iterable[Place]) -> None:
        self.unseen_count += 1
        self.unseen |= dict.fromkeys(places, self.unseen_count)

    # Finding work

    async def absorb(self, limit: int) -> bool:
        taken: list[int] = []

        async def work() -> None:
            taken.append((await self.absorbing.absorb(self.absorber.conns[0], limit)).taken)

        if self.absorber.task:
            return False
        await self._attempt(self.absorber, work())
        return taken != [0]

    async def sweep(self, size: int) -> bool:
        if self.sweeper.task:
            return False
        due = dict(self.unseen)

        async def work() -> None:
            await Sweeper(self.declaration, list(self.targets.values()), size).sweep(self.sweeper.conns[0])
            for place, number in due.items():
                if self.unseen.get(place) == number:
                    del self.unseen[place]

        await self._attempt(self.sweeper, work())
        return True

    # The workers

    def _hands(self, worker: Worker, target: str) -> Hands:
        if target not in worker.hands:
            reader, writer = worker.conns
            limits = Limits(BATCHES[worker.number], LEASE, 0.0, 3)
            worker.hands[target] = Hands(
                worker.derivation, self.targets[target], reader, [writer], self.clock, limits, self.recorder,
                Counters(),
            )  # fmt: skip
        return worker.hands[target]

    async def let_in(self, number: int, target: str) -> bool:
        """Time passes for what is parked; a worker lets it in, as it does before each drain."""
        worker = self.workers[number]
        if worker.task or target not in self.targets:
            return False
        parked = len(self.parked)
        await self._pass_time("not_before")
        await self._hands(worker, target).outbox.let_in(worker.conns[0])
        return bool(parked) or worker.stage == "idle"

    async def claim(self, number: int, target: str) -> bool:
        worker = self.workers[number]
        if worker.task or worker.stage != "idle" or target not in self.targets:
            return False
        hands = self._hands(worker, target)
        if await worker.switch.look(worker.conns[0]):
            return await self._refuse(hands, worker)
        before = await self._leases()
        wave = await hands.claim()
        if wave is None:
            return False
        worker.target, worker.wave, worker.stage, worker.overtaken = target, wave, "claimed", False
        for key in worker.keys:
            if (key, target) in before:
                raise Broken("two valid leases", f"{(key, target)}")
            self.claimed[key, target] += 1
        for other in self.workers:
            if other is not worker and other.wave and other.target == target and other.keys & worker.keys:
                other.overtaken = True
        return True

    async def _refuse(self, hands: Hands, worker: Worker) -> bool:
        """Paused: a run that goes to its drain all the same claims nothing."""
        tokens = self.clock.tokens
        claimed = await drain(hands, worker.switch)
        if claimed or self.clock.tokens != tokens:
            raise Broken("claimed while paused", f"{claimed} entries")
        self.counts["claim refused"] += 1
        return False

    async def _leases(self) -> set[Place]:
        rows = await _rows(self.eye, f"select key_1, target from {OUTBOX} where lease_until >= now()")
        return {(key, target) for key, target in rows}

    async def load(self, number: int) -> bool:
        return await self._step(number, {"claimed"})

    async def compute(self, number: int) -> bool:
        return await self._step(number, {"loaded"})

    async def commit(self, number: int) -> bool:
        return await self._step(number, {"computed"})

    async def finish_late(self, number: int) -> bool:
        """A worker that was overtaken goes on as if it were not."""
        worker, late = self.workers[number], False
        while worker.overtaken and worker.task is None and worker.stage != "idle":
            before = self.counts["late"]
            await self._step(number, {worker.stage})
            late |= self.counts["late"] > before
        return late

    async def fail(self, number: int) -> bool:
        """Every call of the model fails, while the probe is well."""
        worker = self.workers[number]
        worker.derivation.model.mode = "flaky"
        before = len(self.recorder.named("failed"))
        try:
            if not await self._step(number, {"loaded"}):
                return False
        finally:
            worker.derivation.model.mode = ""
        failed = self.recorder.named("failed")[before:]
        return bool(failed)

    async def outage(self, number: int) -> bool:
        """The model's server is away: nothing is counted, everything is given back."""
        worker = self.workers[number]
        worker.derivation.model.mode = "outage"
        attempts = await self._attempts()
        try:
            if not await self._step(number, {"loaded"}):
                return False
        finally:
            worker.derivation.model.mode = ""
        if worker.stage != "idle":
            return False  # there was nothing to ask the model
        self._uncounted(attempts, await self._attempts())
        return True

    async def time_out(self, number: int) -> bool:
        """The wave's budget has run out: it is parked, uncounted."""
        worker = self.workers[number]
        if worker.task or worker.stage not in ("claimed", "loaded", "computed"):
            return False
        attempts = await self._attempts()
        late = self._rescued(worker, Abandoned(worker.stage, 600.0))
        await self._finishing(worker, self._let_go_if_stopped(worker, late))
        self._uncounted(attempts, await self._attempts())
        return True

    async def renew(self, number: int) -> bool:
        """The heartbeat, a lease's length later."""
        worker = self.workers[number]
        if worker.task or worker.wave is None:
            return False
        self.clock.time += LEASE
        hands = worker.hands[worker.target]
        await self._finishing(worker, hands.renew(worker.conns[1]))
        return True

    async def expire(self, number: int) -> bool:
        """The lease of a wave runs out: its worker is stopped, or is gone."""
        worker = self.workers[number]
        if worker.wave is None:
            return False
        return bool(await self._pass_time("lease_until", f"token = {worker.wave.token:d}"))

    async def crash(self, number: int) -> bool:
        worker = self.workers[number]
        if worker.task or worker.wave is None:
            return False
        worker.hands = {}
        worker.rest()
        return True

    async def begin(self, number: int, point: str) -> bool:
        """A worker's next step, which stops at the point if it comes there: after the fence of a commit, say."""
        worker = self.workers[number]
        if worker.task or worker.stage == "idle":
            return False
        worker.gate.arm(point)
        await self._step(number, {worker.stage})
        return worker.task is not None

    async def go_on(self, number: int) -> bool:
        """One who stands at a gate: a worker, or (the number after theirs) the operator."""
        actor = self.stoppable[number]
        if not actor.task or not actor.gate.reached.is_set():
            return False
        actor.gate.open()
        await self._until_still(actor)
        return True

    async def _step(self, number: int, stages: Iterable[str]) -> bool:
        worker = self.workers[number]
        if worker.task or worker.stage not in stages:
            return False
        step = {"claimed": self._load, "loaded": self._compute, "computed": self._commit}[worker.stage]
        await self._finishing(worker, self._let_go_if_stopped(worker, step(worker)))
        return True

    async def _finishing(self, worker: Worker, work: Coroutine[Any, Any, None]) -> None:
        """Whatever a stale holder does, it changes nothing; looked at where nobody else is at work."""
        assert worker.wave is not None
        token, places = worker.wave.token, [(key, worker.target) for key in sorted(worker.keys)]
        before, alone = await self._state(), not self.held_up
        late = [place for place in places if before[place][0] is None or before[place][0]["token"] != token]
        overtaken = [p for p in late if before[p][0] is not None and before[p][0]["token"] is not None]
        await self._attempt(worker, work)
        self.counts["late"] += bool(overtaken)
        if worker.task is not None or not alone:
            return
        after = await self._state()
        for place in late:
            if before[place] != after[place]:
                raise Broken("a stale holder wrote", f"{place}: {before[place]} became {after[place]}")

    async def _let_go_if_stopped(self, worker: Worker, work: Awaitable[None]) -> None:
        """As a drain does: an outage or a configuration error ends it, and everything in hand is given back."""
        try:
            await work
        except Stopped as stopped:
            if stopped.reason != "outage":
                raise Broken("a run stopped", str(stopped)) from stopped
            for hands in worker.hands.values():
                for token, keys in list(hands.in_hand.items()):
                    await hands.release(token, list(keys))
            worker.rest()

    async def _load(self, worker: Worker) -> None:
        wave, hands = self._in_hand(worker)
        try:
            await hands.load(wave)
        except Exception as error:  # noqa: BLE001 - as pipeline.py has it
            await Rescue(hands).rescue(wave, error)
            worker.rest()
            return
        if wave.items:
            worker.stage = "loaded"
        else:
            worker.rest()

    async def _compute(self, worker: Worker) -> None:
        wave, hands = self._in_hand(worker)
        try:
            worker.results = await hands.compute(wave)
        except Exception as error:  # noqa: BLE001
            await self._rescued(worker, error)
            return
        worker.stage = "computed"

    async def _commit(self, worker: Worker) -> None:
        wave, hands = self._in_hand(worker)
        rescue = Rescue(hands)
        try:
            bad = await commit_good(hands, wave, worker.results)
        except Exception as error:  # noqa: BLE001
            await rescue.rescue(wave, error)
        else:
            await rescue.refused(wave, bad)
        worker.rest()

    async def _rescued(self, worker: Worker, error: Exception) -> None:
        wave, hands = self._in_hand(worker)
        if isinstance(error, Retryable):
            self.failed |= worker.keys
        await Rescue(hands).rescue(wave, error)
        worker.rest()

    def _in_hand(self, worker: Worker) -> tuple[Wave, Hands]:
        assert worker.wave is not None
        return worker.wave, worker.hands[worker.target]

    # The operator

    async def retarget(self) -> bool:
        """A second target is filled beside the one that is read."""
        states = [target.state for target in self.targets.values()]
        if self.admin.task or "filling" in states or len(states) >= MOST_TARGETS:
            return False
        await self._add_target(f"t{len(states) + 1}")
        self._not_seen((key, f"t{len(states) + 1}") for key in KEYS)
        return True

    async def promote(self) -> bool:
        if self.admin.task or "filling" not in [target.state for target in self.targets.values()]:
            return False
        conn = self.admin.conns[0]

        async def work() -> None:
            async with conn.transaction():
                await conn.execute("update instep.target set state = 'kept' where state = 'reading'")
                await conn.execute("update instep.target set state = 'reading' where state = 'filling'")
            await self._read_targets(conn)

        await self._attempt(self.admin, work())
        return True

    async def retire(self, slowly: bool) -> bool:
        """Sets the state under FOR UPDATE, then cleans up: stamps, entries in key order, tables (ENGINE.md). Slowly:
        it stops when the stamps are gone."""
        old = [target for target in self.targets.values() if target.state in ("kept", "filling")]
        if self.admin.task or not old:
            return False
        target, conn = min(old, key=lambda t: (t.state != "kept", t.id)), self.admin.conns[0]

        async def work() -> None:
            async with conn.transaction():
                await conn.execute("select 1 from instep.target where id = %s for update", [target.id])
                await conn.execute("update instep.target set state = 'retired' where id = %s", [target.id])
            await self._read_targets(conn)
            await conn.execute(f"delete from {STAMP} where target = %s".encode(), [target.name])
            await self.admin.gate.passing("clean up")
            ordered = f"select ctid from {OUTBOX} where target = %s order by key_1 for update"
            async with conn.transaction():
                await conn.execute(ordered.encode(), [target.name])
                await conn.execute(f"delete from {OUTBOX} where target = %s".encode(), [target.name])
            await self._drop(target.name)

        if slowly:
            self.admin.gate.arm("clean up")
        await self._attempt(self.admin, work())
        return True

    async def replay(self, key: int | None) -> bool:
        return await self._dead("replay", key)

    async def discard(self, key: int | None) -> bool:
        return await self._dead("discard", key)

    async def _dead(self, verb: str, key: int | None) -> bool:
        if self.admin.task:
            return False
        changed: list[int] = []
        conn, given = self.admin.conns[0], None if key is None else (key,)

        async def work() -> None:
            if verb == "replay":
                changed.append(await self.dead.replay(conn, key=given))
            else:
                changed.append(await self.dead.discard(conn, "of no use", key=given))

        await self._attempt(self.admin, work())
        return changed != [0]

    async def pause(self, scope: str) -> bool:
        await pause.pause(self.user, scope, "a try")
        self.paused = True
        return True

    async def resume(self) -> bool:
        self.paused = False
        return bool(await pause.resume(self.user))

    # Looking

    async def _pass_time(self, column: str, where: str = "true") -> int:
        """What waits for a moment sees it come; entries that a transaction holds at this moment are left out."""
        cursor = await self.eye.execute(
            f"update {OUTBOX} set {column} = now() - interval '1 second' where ctid = any(array(select ctid from {OUTBOX}"
            f" where {column} > now() and {where} for update skip locked))".encode()
        )
        return cursor.rowcount

    async def _attempts(self) -> dict[Place, tuple[int, bool]]:
        rows = await _rows(self.eye, f"select key_1, target, attempts, failed_at is not null from {OUTBOX}")
        return {(key, target): (attempts, dead) for key, target, attempts, dead in rows}

    def _uncounted(
        self, before: Mapping[Place, tuple[int, bool]], after: Mapping[Place, tuple[int, bool]]
    ) -> None:
        for place, (attempts, dead) in after.items():
            had, was_dead = before.get(place, (0, False))
            if attempts > had or dead and not was_dead:
                raise Broken("attempts without failure", f"{place}: {attempts} after {had}")

    async def _state(self) -> dict[Place, tuple[dict[str, Any] | None, Any, Any]]:
        """Entry, stamp and output of every key and target."""
        parts = {
            "entry": f"select key_1, target, to_jsonb(o) as told from {OUTBOX} o",
            "stamp": f"select key_1, target, to_jsonb(o) as told from {STAMP} o",
        }
        for target in self.chunk_tables:
            chunk, layout = self._tables_of(target)
            parts[f"output of {target}"] = (
                f"select key_1, '{target}' as target, jsonb_agg(told order by told) as told from ("
                f"select key_1, jsonb_build_array(text, xmin::text) as told from {chunk} union all"
                f" select key_1, jsonb_build_array(text_hashes::text, xmin::text) from {layout}) o group by key_1"
            )
        every = " union all ".join(f"select '{kind}', p.* from ({part}) p" for kind, part in parts.items())
        found = {(kind.split()[0], key, target): told for kind, key, target, told in await _rows(self.eye, every)}
        return {
            (key, target): tuple(found.get((kind, key, target)) for kind in ("entry", "stamp", "output"))  # type: ignore[misc]
            for key in KEYS
            for target in self.targets
        }

    # The end of a history

    def settle(self) -> None:
        """Everything that is under way ends, time passes, workers drain: derived = f(source), or Broken."""
        self._run(self._settle())

    async def _settle(self) -> None:
        await self.slow_commit()
        for _ in range(len(self.actors) + 1):
            for actor in self.stoppable:
                if actor.task is not None:
                    actor.gate.open()
            await asyncio.sleep(0)
            await self._reap()
        if any(actor.task for actor in self.actors):
            raise Broken("hangs", "something waits for ever, with no gate closed")
        await pause.resume(self.user)
        await self._read_targets(self.eye)
        for worker in self.workers:  # they are gone; their leases run out
            worker.hands = {}
            worker.rest()
        await self._pass_time("lease_until")
        await self._drain()
        await self._check("by the queue alone", self.unseen)
        await self.sweep(10_000)
        await self._drain()
        await self._check("after a sweep")
        calls = sum(worker.derivation.model.calls for worker in self.workers)
        again = await Sweeper(self.declaration, list(self.targets.values())).sweep(self.sweeper.conns[0])
        await self._drain()
        if again.enqueued or calls != sum(worker.derivation.model.calls for worker in self.workers):
            raise Broken("work where all is in step", f"{again.enqueued} entries")

    async def _drain(self) -> None:
        worker = self.workers[-1]
        while (await self.absorbing.drain(self.absorber.conns[0])).taken:
            pass
        in_use = [name for name, target in self.targets.items() if target.state != "retired"]
        for _ in range(12):
            claimed = 0
            for target in in_use:
                await self._pass_time("not_before")
                hands = self._hands(worker, target)
                await hands.outbox.let_in(worker.conns[0])
                claimed += await drain(hands, Stop())
            if not claimed:
                return
        raise Broken("never drained")

    async def _check(self, when: str, unseen: Collection[Place] = ()) -> None:
        """`unseen`: places where only a sweep knows what is to be done, which is not held against anybody."""
        rows = await _rows(self.eye, "select id, title, published from articles")
        entries = await _rows(
            self.eye, f"select key_1, target, failed_hash, error_kind from {OUTBOX} where failed_at is not null"
        )
        hashes = {key: content_hash([title]) for key, title, published in rows if published}
        failed = {(key,) for key, title, _ in rows if title is not None and "poison" in title}
        failed |= {(key,) for key in self.failed}
        for key, target, failed_hash, kind in entries:
            if kind == "lost" and self.claimed[key, target] >= LOST_AFTER:
                failed.add((key,))
            elif (key, target) in unseen:
                continue
            elif failed_hash is not None and key in hashes and failed_hash != hashes[key]:
                raise Broken("dead letter of other content", f"{(key, target)} {when}")
        found = await check(self.eye, NAME, failed=failed, vector=vector_of)
        if unseen:
            found = [v for v in found if v.key and (v.key[0], v.target) not in unseen]
        if found:
            raise Broken(found[0].name, f"{when}: " + "; ".join(map(str, found)))


OPERATIONS = (
    "write", "update", "delete", "close_row", "bypass", "truncate", "slow_write", "slow_commit",
    "absorb", "sweep", "let_in", "claim", "load", "compute", "commit", "finish_late", "fail", "outage", "time_out",
    "renew", "expire", "crash", "begin", "go_on", "retarget", "promote", "retire", "replay", "discard", "pause", "resume",
)  # fmt: skip


def _statement(kind: str, key: int, text: str | None) -> tuple[bytes, dict[str, Any]]:
    statement = {
        "upsert": b"insert into articles values (%(key)s, %(text)s, true)"
        b" on conflict (id) do update set title = excluded.title, published = true",
        "update": b"update articles set title = %(text)s where id = %(key)s",
        "delete": b"delete from articles where id = %(key)s",
        "close": b"update articles set published = false where id = %(key)s and published",
    }[kind]
    return statement, {"key": key, "text": text}


async def _rows(conn: Conn, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return await (await conn.execute(statement.encode(), values or None)).fetchall()


async def _row(conn: Conn, statement: str, *values: Any) -> tuple[Any, ...]:
    return (await _rows(conn, statement, *values))[0]
