"""How a run finds its work: triggers as they should be → absorb → sweep if due; for all derivations of one source.

One `Finding` serves the derivations that a worker runs on a source, side by side with their drains: what it enqueues
it also counts, for each.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from instep.clock import Clock
from instep.engine import declared, install, sweep
from instep.engine.absorb import Absorber
from instep.engine.declaration import Declaration, Source
from instep.engine.ports import Conn, Observer
from instep.engine.stopping import Stop
from instep.errors import InstepError

ABSORB_PIECE = 2000
VERIFY_SECONDS = 60.0  # between looks at triggers and partitions, with --follow


class Untrustworthy(InstepError):
    """Capture does not see what it should (a watched column is gone, say): working on would look like being in step."""


class Moved(InstepError):
    """The table was renamed or taken up again: whoever made statements of its name makes them anew."""


@dataclass(slots=True)
class Finding:
    source: Source
    declarations: Sequence[Declaration]  # all of the source, also those that this worker does not drain
    clock: Clock
    observer: Observer
    sweep_every: float | None = None
    sweep_paused: Callable[[], bool] = lambda: False
    enqueued: Counter[str] = field(default_factory=Counter)
    buried: Counter[str] = field(default_factory=Counter)  # dead letters of rows that cannot be read
    complete: asyncio.Event = field(default_factory=asyncio.Event)  # the first pass is over
    found: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def once(self, conn: Conn, stop: Stop) -> None:
        """One pass. Raises Untrustworthy."""
        await self._verify(conn)
        absorber = Absorber(self.source, self.declarations)
        await self._absorb(conn, absorber, stop)
        await self._sweep(conn, absorber, stop)
        self.complete.set()
        await self._tell()

    async def follow(self, conn: Conn, stop: Stop, poll_seconds: float) -> None:
        """Absorb continuously, look at the triggers each minute, sweep when due; until told to finish."""
        verified = float("-inf")
        while not stop.finishing:
            if self.clock.monotonic() - verified >= VERIFY_SECONDS:
                await self._verify(conn)
                verified = self.clock.monotonic()
                # Made anew each time: a derivation may have been added to the source.
                absorber = Absorber(self.source, self.declarations)
                await self._sweep(conn, absorber, stop)
            if await self._piece(conn, absorber) < ABSORB_PIECE:
                # Jitter, so that several workers do not poll in step.
                await stop.wait(poll_seconds * self.clock.uniform(0.8, 1.2))
            self.complete.set()
        await self._tell()

    async def wait(self, seconds: float) -> None:
        """Until something was found, or `seconds` have passed."""
        try:
            async with asyncio.timeout(seconds), self.found:
                await self.found.wait()
        except TimeoutError:
            return

    async def completed(self, seconds: float) -> None:
        """Until the first pass is over, or `seconds` have passed."""
        try:
            async with asyncio.timeout(seconds):
                await self.complete.wait()
        except TimeoutError:
            return

    async def _verify(self, conn: Conn) -> None:
        verified = await install.verify(conn, self.source.name)
        for repaired in verified.repaired:
            self.observer.event("repaired", {"source": self.source.name, "what": repaired})
        if verified.problems:
            problem = verified.problems[0]
            raise Untrustworthy(problem.what, hint=problem.mend)
        known, self.source = self.source, await declared.read_source(conn, self.source.name)
        if (known.oid, known.schema, known.table) != (self.source.oid, self.source.schema, self.source.table):
            raise Moved(f"{known.schema}.{known.table} is now {self.source.schema}.{self.source.table}")
        self.declarations = await declared.read_declarations(conn, self.source)

    async def _absorb(self, conn: Conn, absorber: Absorber, stop: Stop) -> None:
        """What was in the log when this began. Until it is empty would be for ever, under a steady stream of changes
        (test_run.py::test_a_stream_that_never_ends_holds_up_nothing)."""
        while not stop.finishing and await self._piece(conn, absorber) == ABSORB_PIECE:
            pass

    async def _piece(self, conn: Conn, absorber: Absorber) -> int:
        piece = await absorber.absorb(conn, ABSORB_PIECE)
        if piece.taken:
            self.enqueued.update(piece.enqueued)
            await self._tell()
        return piece.taken

    async def _sweep(self, conn: Conn, absorber: Absorber, stop: Stop) -> None:
        for declaration in self.declarations:
            reason = await sweep.due(conn, declaration, self.sweep_every)
            if not reason:
                continue
            self.observer.event("sweep", {"derivation": declaration.name, "reason": reason})
            targets = await declared.read_targets(conn, declaration.name)
            async for piece in sweep.Sweeper(declaration, targets).pieces(conn):
                self.enqueued[declaration.name] += piece.enqueued
                self.buried[declaration.name] += piece.dead
                await self._tell()
                if stop.finishing:
                    return
                # Live work has precedence over a long sweep.
                await self._absorb(conn, absorber, stop)

    async def _tell(self) -> None:
        async with self.found:
            self.found.notify_all()
