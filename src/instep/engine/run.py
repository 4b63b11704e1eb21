"""One run of the derivations of one source: find work, drain it, say what was done.

    find (finding.py)  absorb → sweep          ┐ side by side
    drain (pipeline.py) claim → … → commit     ┘ for each derivation

A worker is run once and exits, or stays (`follow`); the code is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import psycopg

from instep import failpoints
from instep.clock import Clock
from instep.database.outages import is_outage
from instep.database.statements import Statements
from instep.engine import declared, exclusive, sweep
from instep.engine.declaration import Source, Target, fragments
from instep.engine.failures import Stopped, describe
from instep.engine.finding import Finding, Moved
from instep.engine.out import Out
from instep.engine.pause import Switch
from instep.engine.pipeline import drain
from instep.engine.ports import Conn, Connections, Derivation, Observer, RunReport
from instep.engine.stopping import Stop
from instep.engine.wave import Hands, Limits
from instep.errors import InstepError, Outage

IDLE_SECONDS = 1.0  # between looks for parked entries and what other workers left, with --follow
FIRST_PASS_SECONDS = 3.0  # that a run waits for all its work to be found before it begins with what there is
FINISH_SECONDS = 60.0  # between looks at the vector index, with --follow, while changes never end
HELD_SECONDS = 5.0  # between tries for an output that another worker drains, with --follow
WRITERS = 2  # commits under way at once; an output outside PostgreSQL has one
BEAT_SECONDS = 2.0
LAST_WORD_SECONDS = 5.0  # for what a run says at its end, where the database may be out of reach


@dataclass(frozen=True, slots=True)
class Options:
    limits: Limits = field(default_factory=Limits)
    follow: bool = False
    poll_seconds: float = 0.25
    sweep_every: float | None = None
    token: int = 0  # of outputs held alone; 0: a new one for each run


async def run(
    database: Connections, source: Source, derivations: Sequence[Derivation], *, clock: Clock, observer: Observer,
    options: Options, stop: Stop,
) -> list[RunReport]:  # fmt: skip
    """Run `derivations`, all of `source`; one report for each, in their order. Raises nothing that a run can report:
    outages and configuration errors are in the reports."""
    runs = [_Run(database, derivation, clock, observer, options, stop) for derivation in derivations]
    try:
        # Waits for each, also where one fails: none opens a connection after they were closed.
        for outcome in await asyncio.gather(*(one.open() for one in runs), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        conn = await database.dedicated()
    except BaseException as error:
        await asyncio.gather(*(one.close() for one in runs))
        if not isinstance(error, psycopg.Error | Outage):  # cancelled, or refused
            raise
        for one in runs:
            one.report.outage = describe(error)
        return [one.report for one in runs]
    try:
        declarations = await declared.read_declarations(conn, source)
        finding = Finding(source, declarations, clock, observer, options.sweep_every)
        await _side_by_side(finding, conn, runs, options, stop)
    finally:
        await conn.close()
        await asyncio.gather(*(one.close() for one in runs))
    return [one.report for one in runs]


async def _side_by_side(
    finding: Finding, conn: Conn, runs: Sequence[_Run], options: Options, stop: Stop
) -> None:
    find = finding.follow(conn, stop, options.poll_seconds) if options.follow else finding.once(conn, stop)
    finder = asyncio.create_task(find)
    workers = [asyncio.create_task(one.work(finding)) for one in runs]
    finder.add_done_callback(lambda task: _stop_on_failure(task, runs, workers))
    if options.follow:
        for worker in workers:
            worker.add_done_callback(lambda _: _stop_together(runs, [finder, *workers], stop))
    try:
        await asyncio.gather(finder, *workers, return_exceptions=True)
    except asyncio.CancelledError:
        for task in (finder, *workers):
            task.cancel()
        await asyncio.gather(finder, *workers, return_exceptions=True)
        for one in runs:
            one.report.interrupted = True
        raise
    for task in workers:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _stop_on_failure(
    finder: asyncio.Task[None], runs: Sequence[_Run], workers: Sequence[asyncio.Task[None]]
) -> None:
    """Work that can't be found can't be drained: every derivation of the source stops and says why."""
    if finder.cancelled() or (error := finder.exception()) is None:
        return
    for one in runs:
        one.finding_failed = error
    for task in workers:
        task.cancel()


def _stop_together(runs: Sequence[_Run], tasks: Sequence[asyncio.Task[None]], stop: Stop) -> None:
    """A derivation that stays and stops (its connections broke, say) is begun again by who called the run; so the others
    stop too. Else it would rest while the worker looks well (tests/faults/test_database.py)."""
    if stop.finishing:
        return
    for one, task in zip(runs, tasks[1:], strict=True):
        if not task.done() and one.finding_failed is None:
            one.finding_failed = Outage("another derivation of the table stopped")
    for task in tasks:
        task.cancel()


class _Run:
    """One derivation in one run: its connections, its report, its row in instep.run."""

    def __init__(
        self, database: Connections, derivation: Derivation, clock: Clock, observer: Observer, options: Options, stop: Stop
    ) -> None:  # fmt: skip
        self.report = RunReport(derivation.declaration.name)
        self.finding_failed: BaseException | None = None
        self._database, self._derivation, self._clock, self._observer = database, derivation, clock, observer
        self._options, self._stop = options, stop
        self._switch = Switch(stop, self.report.name, observer)
        self._sql = Statements("instep.engine", "run.sql", **fragments(derivation.declaration))
        self._conns: list[Conn] = []
        self._hands: list[Hands] = []
        self._out = Out(clock, again=options.follow)
        self._exclusive: exclusive.Exclusive | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._began, self._id = clock.monotonic(), 0
        self._buried = 0  # of the report's dead: those that finding made

    async def open(self) -> None:
        writers = WRITERS if self._derivation.sink.transactional else 1
        for _ in range(2 + writers):  # reader, heartbeat, writers
            self._conns.append(await self._database.dedicated())
        name = self.report.name
        self._id = await self._value("start", derivation=name)
        failpoints.reach("run.started")
        for target in await declared.read_targets(self._conns[0], name):
            reader, _, *own = self._conns
            self._hands.append(
                Hands(
                    self._derivation, target, reader, own, self._clock, self._options.limits, self._observer,
                    self.report.counters,
                )
            )  # fmt: skip

    async def work(self, finding: Finding) -> None:
        """Drain until nothing is left (or for ever). Every outcome but a defect ends in the report."""
        detail = ""
        try:
            await self._acquire()
            for hands in self._hands:
                await self._prepare(hands.target)
            await self._until_drained(finding)
        except Stopped as stopped:
            self._stopped(stopped)
        except exclusive.HeldElsewhere as held:
            detail = str(held)
        except psycopg.Error as error:
            self._stopped(Stopped("outage" if is_outage(error) else "configuration", describe(error)))
        except asyncio.CancelledError:
            self._cancelled()
            if self.finding_failed is None:
                await asyncio.shield(self._finish(finding, detail))
                raise
        await self._finish(finding, detail)

    async def close(self) -> None:
        await asyncio.gather(*(conn.close() for conn in self._conns))

    def _cancelled(self) -> None:
        match self.finding_failed:
            case None:
                self.report.interrupted = True
            case Moved():
                self.report.moved = True
            case Outage() as error:
                self.report.outage = str(error)
            case (
                InstepError() as error
            ):  # capture, a condition or the table itself is broken: a person mends it
                self.report.configuration = f"{error}: {error.hint}" if error.hint else str(error)
            case psycopg.Error() as error if not is_outage(error):
                self.report.configuration = describe(error)
            case psycopg.Error() as error:
                self.report.outage = describe(error)
            case error:
                raise RuntimeError("looking for work failed") from error

    async def _acquire(self) -> None:
        """Take hold of an output outside PostgreSQL. A worker that stays waits for it; another goes on without."""
        if self._derivation.sink.transactional:
            return
        token = self._options.token or self._clock.token()
        while True:
            try:
                self._exclusive = await exclusive.acquire(self._conns[1], self.report.name, token)
                return
            except exclusive.HeldElsewhere as held:
                self._held_elsewhere(held)
                if not self._options.follow or await self._stop.wait(HELD_SECONDS):
                    raise

    def _held_elsewhere(self, held: exclusive.HeldElsewhere) -> None:
        fields = {"derivation": self.report.name, "message": str(held), "hint": held.hint}
        self._observer.event("held elsewhere", fields)

    async def _prepare(self, target: Target) -> None:
        conn, sink = self._conns[2], self._derivation.sink
        await sink.prepare(conn, target)
        if not await sink.intact(conn, target):
            self._observer.event("made again", {"derivation": self.report.name, "target": target.name})
            await conn.execute(self._sql["forget_stamps"], {"target": target.name})
            await sweep.make_due(
                conn, "the output was not what the database knows", derivation=self.report.name
            )

    async def _until_drained(self, finding: Finding) -> None:
        beat = asyncio.create_task(self._beat(finding))
        work = asyncio.create_task(self._follow(finding) if self._options.follow else self._once(finding))
        try:
            await asyncio.wait((beat, work), return_when=asyncio.FIRST_COMPLETED)
            if beat.done():
                beat.result()
            await work
        finally:
            tasks = [task for task in (beat, work, self._finishing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _once(self, finding: Finding) -> None:
        # What is worked while a sweep passes it is given back and looked at twice; so a short first pass goes first.
        await finding.completed(FIRST_PASS_SECONDS)
        while not self._stop.finishing:
            last = finding.complete.is_set()  # asked before the drain: what is found during it is drained too
            drained = await self._drain()
            if len(self._out) == len(self._hands) or (last and not drained):
                break
            if not drained:
                await finding.wait(IDLE_SECONDS)
        self._out.raise_first()
        if not self._switch.finishing:
            await self._sink_finish()

    async def _follow(self, finding: Finding) -> None:
        idle, finished = False, self._clock.monotonic()
        while not self._stop.finishing:
            if self._clock.monotonic() - finished > FINISH_SECONDS and not self._switch.finishing:
                # A trickle of changes that never ends must not keep the vector index from being built.
                await self._finish_beside()
                finished = self._clock.monotonic()
            if await self._drain():
                idle = False
                continue
            if not idle and finding.complete.is_set() and not self._out and not self._switch.finishing:
                await self._finish_beside()
                idle, finished = True, self._clock.monotonic()
            await finding.wait(self._out.soonest(IDLE_SECONDS))

    async def _drain(self) -> int:
        claimed = 0
        await self._switch.look(self._conns[1])
        for hands in self._hands:
            if self._switch.finishing:
                break
            if self._out.waits(hands.target.name):
                continue
            async with hands.reading() as conn:
                await hands.outbox.let_in(conn)
            try:
                claimed += await drain(hands, self._switch)
            except Stopped as stopped:
                if isinstance(stopped.__cause__, psycopg.Error):
                    raise  # the next run begins with new connections: these are broken, or lead to a standby
                seconds = self._out.add(hands.target.name, stopped)
                if self._options.follow:
                    hands.event("outage", message=str(stopped), seconds=seconds)
            else:
                self._out.pop(hands.target.name, None)
        return claimed

    async def _sink_finish(self) -> None:
        for hands in self._hands:
            await self._derivation.sink.finish(self._conns[2], hands.target)

    async def _finish_beside(self) -> None:
        """With --follow, changes are worked while a vector index is built. An output outside PostgreSQL has one writer,
        so it is finished between two drains."""
        if not self._derivation.sink.transactional:
            await self._sink_finish()
            return
        if self._finishing is not None:
            if not self._finishing.done():
                return
            self._finishing.result()
        self._finishing = asyncio.create_task(self._finish_apart())

    async def _finish_apart(self) -> None:
        conn = await self._database.dedicated()
        try:
            for hands in self._hands:
                await self._derivation.sink.finish(conn, hands.target)
        finally:
            await conn.close()

    async def _beat(self, finding: Finding) -> None:
        """Renew the leases of what is in hand, the hold on the output, and the run's row; look at the pause switch; let in
        what is due, which a drain that never ends would keep out; tell how much is left."""
        lease = self._options.limits.lease_seconds
        while True:
            try:
                # A renewal waits for the commit that has its entries locked.
                async with asyncio.timeout(lease):
                    await self._beat_once(finding)
            except TimeoutError:
                raise Stopped("outage", f"no lease could be renewed in {lease:g} s") from None
            await asyncio.sleep(min(BEAT_SECONDS, lease / 3))

    async def _beat_once(self, finding: Finding) -> None:
        conn = self._conns[1]
        await self._switch.look(conn)
        for hands in self._hands:
            await hands.renew(conn)
            await hands.outbox.let_in(conn)
        if self._exclusive is not None and not await self._exclusive.renew(conn):
            raise Stopped("outage", f"the hold on {self._exclusive.name} was lost to another worker")
        await self._tell_progress(conn, finding)

    async def _tell_progress(self, conn: Conn, finding: Finding) -> None:
        report = self.report
        self._count_found(finding)
        report.pending = sum([await hands.outbox.waiting(conn) for hands in self._hands])
        counters = report.counters.as_dict()
        await conn.execute(self._sql["seen"], {"id": self._id, "counters": orjson.dumps(counters).decode()})
        looking = {"waiting": report.pending, "finding": not finding.complete.is_set()}
        self._observer.event("progress", {"derivation": report.name, **looking, **counters})

    def _count_found(self, finding: Finding) -> None:
        counters, name = self.report.counters, self.report.name
        counters.enqueued = finding.enqueued[name]
        counters.dead += finding.buried[name] - self._buried
        self._buried = finding.buried[name]

    def _stopped(self, stopped: Stopped) -> None:
        if stopped.reason == "outage":
            self.report.outage = str(stopped)
        else:
            self.report.configuration = str(stopped)

    async def _finish(self, finding: Finding, detail: str) -> None:
        report = self.report
        report.seconds = self._clock.monotonic() - self._began
        self._count_found(finding)
        report.interrupted = report.interrupted or (self._stop.finishing and not self._options.follow)
        report.paused = str(self._switch.paused or "")
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._last_word(report.outage or report.configuration or detail)
            failpoints.reach("run.finished")
        except (psycopg.Error, TimeoutError) as error:
            report.outage = report.outage or describe(error)
        self._observer.event(
            "finished", {"derivation": report.name, "waiting": report.pending, **report.counters.as_dict()}
        )

    async def _last_word(self, detail: str) -> None:
        conn, report = self._conns[1], self.report
        detail = detail or (report.paused and f"paused: {report.paused}")
        report.pending = sum([await hands.outbox.waiting(conn) for hands in self._hands])
        if self._exclusive is not None:
            await self._exclusive.release(conn)
        counters = orjson.dumps(report.counters.as_dict()).decode()
        await self._value(
            "finish", id=self._id, counters=counters, outcome=report.outcome, detail=detail or None
        )

    async def _value(self, statement: str, **values: object) -> int:
        cursor = await self._conns[1].execute(self._sql[statement], values)
        row = await cursor.fetchone() if cursor.description else None
        return int(row[0]) if row else 0
