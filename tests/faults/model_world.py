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

from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

from model_bench import Bench
from model_parts import (
    BATCHES,
    CHANGE,
    KEYS,
    LEASE,
    MOST_TARGETS,
    OUTBOX,
    STAMP,
    Broken,
    Place,
    Worker,
    fetch,
)

from instep.engine import pause
from instep.engine.failures import Stopped
from instep.engine.halving import Rescue, commit_good
from instep.engine.pipeline import drain
from instep.engine.ports import Counters
from instep.engine.sweep import Sweeper
from instep.engine.wave import Abandoned, Hands, Limits, Wave
from instep.errors import Retryable

OPERATIONS = (
    "write", "update", "delete", "close_row", "bypass", "truncate", "slow_write", "slow_commit",
    "absorb", "sweep", "let_in", "claim", "load", "compute", "commit", "finish_late", "fail", "outage", "time_out",
    "renew", "expire", "crash", "begin", "go_on", "retarget", "promote", "retire", "replay", "discard", "pause", "resume",
)  # fmt: skip


class World(Bench):
    """The operations of a history, by their names in `OPERATIONS`."""

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
        cursor = await self.slow.execute(*_statement("upsert", key, text))
        self.slow_wrote = bool(cursor.rowcount)
        return True

    async def slow_commit(self) -> bool:
        if not self.slow_key:
            return False
        await self.slow.execute("commit")
        if self.slow_wrote:
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

    def hands(self, worker: Worker, target: str) -> Hands:
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
        await self.pass_time("not_before")
        await self.hands(worker, target).outbox.let_in(worker.conns[0])
        return bool(parked) or worker.stage == "idle"

    async def claim(self, number: int, target: str) -> bool:
        worker = self.workers[number]
        if worker.task or worker.stage != "idle" or target not in self.targets:
            return False
        hands = self.hands(worker, target)
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
        rows = await fetch(self.eye, f"select key_1, target from {OUTBOX} where lease_until >= now()")
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
        return bool(await self.pass_time("lease_until", f"token = {worker.wave.token:d}"))

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
        tokens = {place: (before[place][0] or {}).get("token") for place in places}
        late = [place for place in places if tokens[place] != token]
        overtaken = [place for place in late if tokens[place] is not None]
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
            await self.read_targets(conn)

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
            await self.read_targets(conn)
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


def _statement(kind: str, key: int, text: str | None) -> tuple[bytes, dict[str, Any]]:
    """What changes nothing touches no row: it would not be captured."""
    statement = {
        "upsert": b"insert into articles values (%(key)s, %(text)s, true)"
        b" on conflict (id) do update set title = excluded.title, published = true"
        b" where (articles.title, articles.published) is distinct from (excluded.title, true)",
        "update": b"update articles set title = %(text)s where id = %(key)s and title is distinct from %(text)s",
        "delete": b"delete from articles where id = %(key)s",
        "close": b"update articles set published = false where id = %(key)s and published",
    }[kind]
    return statement, {"key": key, "text": text}
