"""A wave that failed: halve it until the bad entries stand alone, and count only those.

One bad entry of 500 costs some 18 calls, not 500. An attempt is counted only when an item failed alone, and only
after a fixed harmless probe has shown that the backend and its settings are well.
"""

from __future__ import annotations

from collections.abc import Sequence

from instep.engine.commit import Change
from instep.engine.failures import Failed, Meaning, Stopped, classify, describe
from instep.engine.outbox import Failure
from instep.engine.ports import Entry, Output
from instep.engine.wave import Abandoned, Hands, Wave
from instep.errors import InstepError, Permanent


class Rescue:
    """The rescue of one wave. The probe is asked once: what it says holds for the whole of it."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._succeeded_before = hands.succeeded
        self._probed = False

    async def rescue(self, wave: Wave, error: Exception) -> None:
        """Settle every entry that `wave` still holds. Raises Stopped for an outage or a configuration error."""
        if isinstance(error, Abandoned):
            await self._abandoned(wave, error)
            return
        failed = await self._judge(error)
        if len(wave.entries) <= 1:
            await self._record(wave, failed)
            return
        middle = (len(wave.entries) + 1) // 2
        self._hands.event("halved", size=len(wave.entries), kind=failed.kind, message=failed.message)
        for half in (wave.entries[:middle], wave.entries[middle:]):
            await self.attempt(wave.token, half)

    async def attempt(self, token: int, entries: Sequence[Entry]) -> None:
        """One part of a wave, from its load on."""
        part = Wave(token, list(entries), alone=len(entries) == 1)
        try:
            await self._hands.load(part)
            if not part.items:
                return
            results = await self._hands.compute(part)
            bad = await commit_good(self._hands, part, results)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the table of failures.classify names it
            await self.rescue(part, error)
        else:
            await self.refused(part, bad)

    async def refused(self, wave: Wave, bad: Sequence[tuple[Entry, Permanent]]) -> None:
        """Items that compute itself named as bad: each is tried alone once, then a dead letter."""
        for entry, error in bad:
            if wave.alone:
                await self._record(Wave(wave.token, [entry], True, wave.items), await self._judge(error))
            else:
                await self.attempt(wave.token, [entry])

    async def _judge(self, error: BaseException) -> Failed:
        """What the failure means, by the probe where that decides. Returns only an item's failure."""
        failed = classify(error)
        if failed.meaning in (
            Meaning.DATABASE,
            Meaning.REPEAT,
        ):  # REPEAT: the commit was repeated already, in vain
            raise Stopped("outage", failed.message) from error
        if failed.meaning is Meaning.SCHEMA:
            raise Stopped("configuration", failed.message) from error
        if (
            failed.meaning in (Meaning.BACKEND, Meaning.SETTING)
            or failed.deterministic
            or not isinstance(error, InstepError)
        ):
            await self._probe(failed, error)
        return failed

    async def _probe(self, failed: Failed, error: BaseException) -> None:
        if self._probed or failed.kind == "data corruption":
            return
        try:
            await self._hands.probe()
        except Exception as probe_error:  # noqa: BLE001 - named by its meaning below
            probed = classify(probe_error)
            backend = probed.meaning is Meaning.BACKEND or isinstance(probe_error, Abandoned)
            asked = failed.retry_after if probed.retry_after is None else probed.retry_after
            raise Stopped("outage" if backend else "configuration", describe(probe_error), asked) from error
        self._probed = True

    async def _record(self, wave: Wave, failed: Failed) -> None:
        hashes = {item.key: item.hash for item in wave.items}
        failures = [
            Failure(entry, failed.kind, failed.message, failed.deterministic, hashes.get(entry.key))
            for entry in wave.entries
        ]
        await self._hands.fail(wave.token, failures)

    async def _abandoned(self, wave: Wave, error: Abandoned) -> None:
        """A whole wave is parked uncounted. One entry alone failed, if others got through in the meantime."""
        hands = self._hands
        if wave.alone and hands.succeeded > self._succeeded_before:
            await self._record(wave, Failed(Meaning.ITEM, "timeout", str(error), False))
            return
        if wave.alone:
            raise Stopped("outage", f"{error}, and nothing else got through in the meantime") from error
        hands.counters.abandoned += len(wave.entries)
        hands.event("abandoned", stage=error.stage, budget_seconds=error.seconds, size=len(wave.entries))
        await hands.park(wave.token, [entry.key for entry in wave.entries])


async def commit_good(
    hands: Hands, wave: Wave, results: Sequence[Output | Permanent]
) -> list[tuple[Entry, Permanent]]:
    """Commit what was computed; return what was refused, with its entry."""
    outputs = [result for result in results if isinstance(result, Output)]
    good = {output.key for output in outputs}
    entries = {entry.key: entry for entry in wave.entries}
    if outputs:
        await hands.commit(Change(wave.token, wave.part(good), outputs), wave.stamped)
    return [
        (entries[item.key], result)
        for item, result in zip(wave.items, results, strict=True)
        if isinstance(result, Permanent)
    ]
