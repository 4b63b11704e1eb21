"""One database, its connections and actors: made once, reset for each history, and how operations are run on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import psycopg
import uvloop
from model_parts import (
    BATCHES,
    CHANGE,
    HANGS_AFTER,
    KEYS,
    NAME,
    OUTBOX,
    SPEC,
    STAMP,
    Actor,
    Broken,
    Clock,
    Gate,
    GatedDerivation,
    Operation,
    Place,
    Worker,
    fetch,
    fetch_one,
)

from instep.chunks.names import chunk_tables
from instep.engine import declared, install, pause, sweep
from instep.engine.absorb import Absorber
from instep.engine.dead import DeadLetters
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.ports import Conn
from instep.engine.stopping import Stop
from instep.testing.toy import Recorder


class Bench:
    """One database, reset for each history."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clock = Clock()
        self.counts: Counter[str] = Counter()  # of operations that did something, over all histories
        self.trace: list[Operation] = []
        self.run(self._make())

    def close(self) -> None:
        self.run(self._disconnect())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    # Making and resetting

    async def _make(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(
                "create table articles (id bigint primary key, title text, published boolean not null default true)"
            )
            (oid,) = await fetch_one(conn, "select 'articles'::regclass::oid")
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
        self.workers = [Worker([rest.pop(), rest.pop()], number=number) for number in range(len(BATCHES))]

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
        self.run(self._reset())

    def abandon_history(self) -> None:
        """After a fault: whatever is under way is ended, or given up."""
        self.run(self._abandon())

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
        self.slow_key, self.slow_wrote, self.paused = 0, False, False
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
        await self.read_targets(conn)
        await self.workers[0].derivation.sink.prepare(conn, self.targets[name])
        self.chunk_tables[name] = self.targets[name].id

    async def read_targets(self, conn: Conn) -> None:
        self.targets = {target.name: target for target in await declared.read_targets(conn, NAME)}

    def _tables_of(self, target: str) -> list[str]:
        tables = chunk_tables(self.declaration, Target(self.chunk_tables[target], NAME, target, ""))
        return [tables.chunk.as_string(None), tables.layout.as_string(None)]

    async def _drop(self, target: str) -> None:
        await self.admin.conns[0].execute(
            f"drop table if exists {', '.join(self._tables_of(target))}".encode()
        )
        del self.chunk_tables[target]

    # Running operations

    def do(self, operation: str, *values: Any) -> bool:
        """One operation of a history; False where it had nothing to do. Raises Broken."""
        return bool(self.run(self._do(operation, values)))

    async def _do(self, operation: str, values: Sequence[Any]) -> bool:
        self.trace.append((operation, *values))
        ran = await getattr(self, operation)(*values)
        await self.reap()
        await self.look()
        if ran:
            self.counts[operation] += 1
        return bool(ran)

    async def look(self) -> None:
        """What the outbox holds, for the machine's choice of operations."""
        state = "case when failed_at is not null then 'dead' when not_before is not null then 'parked'"
        state += " when lease_until >= now() then 'leased' else 'waiting' end"
        seen: dict[str, set[Place]] = {"dead": set(), "parked": set(), "leased": set(), "waiting": set()}
        for key, target, word in await fetch(self.eye, f"select key_1, target, {state} from {OUTBOX}"):
            seen[word].add((key, target))
        self.dead_letters, self.parked, self.waiting = seen["dead"], seen["parked"], seen["waiting"]

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
        (blocking,) = await fetch_one(
            self.eye,
            "select coalesce(array_agg(b), '{}') from unnest(%s::int[]) p, unnest(pg_blocking_pids(p)) b",
            pids,
        )
        return bool(set(blocking) & {*others, self.slow.info.backend_pid} - set(pids))

    async def reap(self) -> None:
        """Those who waited for a lock that is free now."""
        while True:
            before = [actor for actor in self.actors if actor.task is not None]
            for actor in before:
                if actor.task is not None and not actor.gate.reached.is_set():
                    await self._until_still(actor)
            if len([actor for actor in self.actors if actor.task is not None]) == len(before):
                return

    # Looking

    async def pass_time(self, column: str, where: str = "true") -> int:
        """What waits for a moment sees it come; entries that a transaction holds at this moment are left out."""
        cursor = await self.eye.execute(
            f"update {OUTBOX} set {column} = now() - interval '1 second' where ctid = any(array(select ctid from {OUTBOX}"
            f" where {column} > now() and {where} for update skip locked))".encode()
        )
        return cursor.rowcount

    async def _attempts(self) -> dict[Place, tuple[int, bool]]:
        rows = await fetch(self.eye, f"select key_1, target, attempts, failed_at is not null from {OUTBOX}")
        return {(key, target): (attempts, dead) for key, target, attempts, dead in rows}

    def _uncounted(
        self, before: Mapping[Place, tuple[int, bool]], after: Mapping[Place, tuple[int, bool]]
    ) -> None:
        for place, (attempts, dead) in after.items():
            had, was_dead = before.get(place, (0, False))
            if attempts > had or (dead and not was_dead):
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
        found = {
            (kind.split()[0], key, target): told for kind, key, target, told in await fetch(self.eye, every)
        }
        return {
            (key, target): tuple(found.get((kind, key, target)) for kind in ("entry", "stamp", "output"))
            for key in KEYS
            for target in self.targets
        }
