"""Overlapping waves: while one is computed, the next are loaded and the last are committed.

At most five waves are in hand (one being loaded, one that is loaded, one computed, one for each writer being
committed), so memory is bounded by five waves' contents. The model is never idle while there is something to load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import psycopg

from instep.engine.declaration import Key
from instep.engine.failures import Meaning, Stopped, classify, describe
from instep.engine.halving import Rescue, commit_good
from instep.engine.ports import Output
from instep.engine.stopping import Stop
from instep.engine.wave import Hands, Wave
from instep.errors import Permanent

RELEASE_SECONDS = 5.0  # that a run which ends tries to give back what it holds


async def drain(hands: Hands, stop: Stop) -> int:
    """Work until nothing can be claimed; the number of entries claimed. On SIGINT finishes what is being computed or
    committed; when cancelled (SIGTERM) or stopped by an outage releases everything. Raises Stopped."""
    return await _Drain(hands, stop).run()


class _Drain:
    def __init__(self, hands: Hands, stop: Stop) -> None:
        self._hands, self._stop = hands, stop
        self._loading: asyncio.Task[None] | None = None
        self._loaded: asyncio.Queue[Wave | Exception | None] = asyncio.Queue(maxsize=1)
        self._committing: set[asyncio.Task[None]] = set()
        self._claimed = 0

    async def run(self) -> int:
        try:
            await self._loop()
        finally:
            await self._let_go()
        return self._claimed

    async def _loop(self) -> None:
        self._loading = asyncio.create_task(self._load())
        while not self._stop.finishing:
            wave = await self._loaded.get()
            if isinstance(wave, Exception):
                raise wave
            if wave is None or self._stop.finishing:
                break
            await self._work(wave)
        await self._committed()

    async def _load(self) -> None:
        """Load ahead; what went wrong comes in its turn, after the waves that were loaded before it."""
        outcome: Exception | None = None
        try:
            while (wave := await self._next()) is not None:
                await self._loaded.put(wave)
        except Exception as error:  # noqa: BLE001 - raised again by the one who waits for waves
            outcome = error
        await self._loaded.put(outcome)

    async def _next(self) -> Wave | None:
        """The next wave that has something to compute."""
        while not self._stop.finishing:
            wave = await _database(self._hands.claim())
            if wave is None:
                return None
            self._claimed += len(wave.entries)
            try:
                await self._hands.load(wave)
            except Exception as error:  # noqa: BLE001 - failures.classify names it
                await Rescue(self._hands).rescue(wave, error)
                continue
            if wave.items:
                return wave
        return None

    async def _work(self, wave: Wave) -> None:
        hands, began = self._hands, self._hands.clock.monotonic()
        try:
            results = await hands.compute(wave)
        except Exception as error:  # noqa: BLE001 - failures.classify names it
            await self._committed()
            await Rescue(hands).rescue(wave, error)
        else:
            await self._committed(self._hands.writers - 1)
            self._committing.add(asyncio.create_task(self._commit(wave, results)))
        hands.event("wave", size=len(wave.items), seconds=hands.clock.monotonic() - began)

    async def _commit(self, wave: Wave, results: Sequence[Output | Permanent]) -> None:
        rescue = Rescue(self._hands)
        try:
            bad = await commit_good(self._hands, wave, results)
        except Exception as error:  # noqa: BLE001 - failures.classify names it
            await rescue.rescue(wave, error)
        else:
            await rescue.refused(wave, bad)
        self._hands.event("committed", **self._hands.counters.as_dict())

    async def _committed(self, still: int = 0) -> None:
        """Until no more than `still` commits are under way. Raises what one of them raised."""
        while len(self._committing) > still:
            done, self._committing = await asyncio.wait(self._committing, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _let_go(self) -> None:
        """End what is under way and give back what is in hand. Runs outside the cancelled scope."""
        tasks = [*self._committing, *([self._loading] if self._loading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.shield(self._release_all())

    async def _release_all(self) -> None:
        """In bounded time, whatever the network does; a broken connection does not speak for the others."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                for token, keys in list(self._hands.in_hand.items()):
                    await self._release(token, list(keys))
        except TimeoutError:
            left = sum(len(keys) for keys in self._hands.in_hand.values())
            self._hands.event(
                "left to the lease", size=left, message=f"no answer within {RELEASE_SECONDS:g} s"
            )

    async def _release(self, token: int, keys: Sequence[Key]) -> None:
        for writer in range(self._hands.writers):  # each has its turn
            try:
                await self._hands.release(token, keys)
                return
            except psycopg.Error as error:
                if writer == self._hands.writers - 1:  # the database can't be reached
                    self._hands.event("left to the lease", size=len(keys), message=describe(error))


async def _database(step: Awaitable[Wave | None]) -> Wave | None:
    """A claim that fails has no wave to halve: trouble of the database is an outage, anything else a defect."""
    try:
        return await step
    except psycopg.Error as error:
        failed = classify(error)
        raise Stopped(
            "configuration" if failed.meaning is Meaning.SCHEMA else "outage", failed.message
        ) from error
