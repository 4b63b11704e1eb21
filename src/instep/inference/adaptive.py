"""The adaptive limit: bulk requests are as many and as large as the server takes without a queue before it.

Two figures are learned from answers. What a request of so many texts costs the server: the time to its answer, divided by
our requests under way. And how long it takes when no other of ours is under way. A request may ask for `BULK_SECONDS` of the server's work, and only for `SHARED_SECONDS` of it while queries
come; it is not made so small that a text costs noticeably more. The number under way grows by steps while answers come
as fast as alone, and falls by a part as soon as they wait for one another (additive increase, multiplicative decrease
on latency). No client can take back a request, so what a query waits for is what is under way when it comes.

What holds (tests/unit/test_inference_adaptive.py): a server that works one thing after another has at most two or
three requests of ours waiting, one small one while queries come; one that answers at once, or works many at once, has
all that `highest` allows; urgent requests wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from instep.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from instep.inference.limit import Slot
    from instep.inference.ports import Precedence

BULK_SECONDS = 0.4  # of a server's work that one bulk request asks for
SHARED_SECONDS = 0.1  # likewise, while queries come
QUICK_SECONDS = 0.4  # an answer within this makes nobody wait: the number under way is not cut for it
SHARED_QUICK_SECONDS = 0.01
LONGER, SHARED_LONGER = 2.5, 1.5  # times as long as alone: a queue
DEARER, SHARED_DEARER = 1.1, 1.25  # times the cheapest cost of a text that a smaller request may have
FIRST_TEXTS = 4  # of a request to a server that is not known yet, while queries come
DECREASE = 0.8
PATIENCE = (32.0, 1024.0)  # answers before one more request is tried after a decrease: first and longest
YIELD_SECONDS = 1.0  # that bulk work waits for urgent requests of its own process
DOUBTED = 2.5  # times another size's cost of a text
JUDGED = 6  # answers after which a size is found too dear
REMEMBERED_SECONDS = 60.0  # after which what is known of a size is learned anew
SHARED_REMEMBERED_SECONDS = 600.0  # likewise while queries come: to learn it, one request at a time is sent
ASKED_SECONDS = 15.0  # that a query counts as one of several that come


class AdaptiveLimit:
    """`precedence` says whether other processes ask `server` for queries; without it only this process's count."""

    def __init__(
        self,
        highest: int,
        *,
        server: str = "",
        precedence: Precedence | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.highest = max(1, highest)
        self._server, self._precedence, self._clock = server, precedence, clock
        self._window = 1.0  # bulk requests under way, at most
        self._starting = True  # until the first decrease the window grows with each answer
        self._patience = PATIENCE[0]
        self._under_way = self._urgent = 0
        self._urgent_since = self._asked_until = 0.0
        self._answers = 0
        self._shrunk = 0  # by the answers before it: what was sent earlier says nothing of the smaller window
        self._shared = False
        self._measuring = False  # the next request goes alone, to see how long it takes
        self._cost = _Known()  # seconds of the server's work
        self._alone = _Known()  # seconds to the answer, with no other request of ours about
        self._waiting: deque[asyncio.Future[None]] = deque()

    def slot(self, texts: int, *, urgent: bool) -> Slot:
        return _Slot(self, texts, urgent)

    @property
    def window(self) -> int:
        """Bulk requests that may be under way now."""
        return int(self._window)

    def interactive(self) -> None:
        self._asked_until = self._clock.monotonic() + ASKED_SECONDS
        if self._precedence is not None:
            self._precedence.announce(self._server)

    async def enter(self, slot: _Slot) -> None:
        if slot.urgent:
            if not self._urgent:
                self._urgent_since = self._clock.monotonic()
            self._urgent += 1
            return
        if self._waiting or not self._free():
            await self._turn()
        else:
            self._under_way += 1
        slot.alone, slot.earlier = self._under_way == 1, self._answers
        slot.texts = self._texts(slot.texts)
        slot.about = self._under_way

    def leave(self, slot: _Slot) -> None:
        if slot.urgent:
            self._urgent -= 1
        else:
            self._under_way -= 1
            if slot.alone:
                self._measuring = False
        self._wake()

    def answered(self, slot: _Slot, seconds: float) -> None:
        """Learn from one answer to a bulk request, and adapt."""
        now = self._clock.monotonic()
        cost = seconds / slot.about  # all at once, or one after another: so much is this one's part
        self._answers += 1
        if self._answers == 2 and cost < slot.texts * self._cost.cheapest() / 2:
            self._cost.clear()  # the first answer had waited for a model to be loaded
            self._alone.clear()
        self._cost.forget(now, REMEMBERED_SECONDS)
        self._cost.learn(slot.texts, cost, now, self._shared)
        if slot.alone and self._answers == slot.earlier + 1:
            self._alone.learn(slot.texts, seconds, now, self._shared)
        self._alone.forget(now, SHARED_REMEMBERED_SECONDS if self._shared else REMEMBERED_SECONDS)
        quick, longer = (SHARED_QUICK_SECONDS, SHARED_LONGER) if self._shared else (QUICK_SECONDS, LONGER)
        if seconds <= quick:
            self._grow()
        elif _size(slot.texts) not in self._alone:
            self._measuring = True
        elif seconds <= longer * self._alone.estimate(slot.texts):
            if not self._shared or self._alone[_size(slot.texts)].times >= JUDGED or self._window >= 2:
                self._grow()  # while queries come, what a size costs is found out first, one at a time
        elif not slot.alone and slot.earlier >= self._shrunk:
            self._shrink()

    def refused(self, wait: float | None) -> None:
        """Fewer requests at once. Where the server says how long to wait, the one that pauses is the only one."""
        self._shrink()
        if wait is not None:
            self._window = 1.0

    def _grow(self) -> None:
        if self._window < self.highest:
            self._window = min(self.highest, self._window + (1.0 if self._starting else 1.0 / self._patience))

    def _shrink(self) -> None:
        if not self._starting:
            self._patience = min(self._patience * 2, PATIENCE[1])
        self._starting, self._shrunk = False, self._answers
        self._window = max(1.0, int(self._window) * DECREASE)

    def _texts(self, wanted: int) -> int:
        """The largest request, halved as often as is needed, that keeps the server no longer than it may."""
        known = self._alone if self._shared and self._alone else self._cost
        if not known:
            return min(wanted, FIRST_TEXTS) if self._shared else wanted
        most, dearer = (SHARED_SECONDS, SHARED_DEARER) if self._shared else (BULK_SECONDS, DEARER)
        sizes = [wanted]
        while known.estimate(sizes[-1]) > most and sizes[-1] > 1:
            sizes.append(_size(sizes[-1]) // 2)
        least = sizes[-1]
        while len(sizes) > 1 and known.dearer(sizes[-1], wanted, dearer, self._shared, sizes[-1] > least):
            sizes.pop()
        return sizes[-1]

    async def _turn(self) -> None:
        """Until one more bulk request is under way, after those that wait already."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                with suppress(ValueError):  # another one's end has passed over it already
                    self._waiting.remove(future)
            else:  # it was this one's turn: the next one's then
                self._under_way -= 1
                self._wake()
            raise

    def _free(self) -> bool:
        now = self._clock.monotonic()
        others = self._precedence is not None and self._precedence.wanted(self._server)
        if self._shared != (others or now < self._asked_until):
            self._shared = not self._shared
            self._window, self._starting, self._patience = 1.0, True, PATIENCE[0]
        if self._urgent and now - self._urgent_since < YIELD_SECONDS:
            return False
        return self._under_way < (1 if self._measuring else self.window)

    def _wake(self) -> None:
        """Let those go on that may, the first first."""
        while self._waiting and self._free():
            future = self._waiting.popleft()
            if not future.done():
                self._under_way += 1
                future.set_result(None)


def _size(texts: int) -> int:
    """The power of two that so many texts are known under: 5 to 8 together."""
    return 1 << (texts - 1).bit_length()


class _Seen(NamedTuple):
    seconds: float
    least: float  # forgotten by and by
    times: int
    at: float


class _Known(dict[int, _Seen]):
    """Seconds by number of texts, in powers of two."""

    def learn(self, texts: int, seconds: float, now: float, shared: bool) -> None:
        """`shared`: it may have waited for queries, then a low one tells more than a high one."""
        size = _size(texts)
        seconds *= size / texts
        known = self.get(size) or _Seen(seconds, seconds, 0, now)
        part = 0.15 if not shared else 0.3 if seconds < known.seconds else 0.06
        self[size] = _Seen(
            known.seconds + (seconds - known.seconds) * part,
            min(seconds, known.least * 1.02),
            known.times + 1,
            now,
        )
        each = self[size].seconds / size * DOUBTED
        for other, seen in list(
            self.items()
        ):  # a larger request never costs more for a text: the newer is right
            if (seen.seconds / other > each) if other > size else (seen.seconds / other * DOUBTED**2 < each):
                del self[other]

    def forget(self, now: float, after: float) -> None:
        for size in [size for size, known in self.items() if now - known.at > after]:
            del self[size]

    def cheapest(self) -> float:
        """Seconds for a text, at its least."""
        return min(known.seconds / size for size, known in self.items())

    def dearer(self, texts: int, most: int, times: float, shared: bool, guess: bool) -> bool:
        """Whether a text costs so many times more in a request of `texts` than in a larger one of up to `most`. It is
        judged by several; while queries come by the quickest, for the others may have waited for these. `guess`: it is
        enough that other sizes make it likely."""
        known = self.get(texts)
        if not guess and (known is None or known.times < JUDGED):
            return False
        if known is None:
            seconds = self.estimate(texts)
            known = _Seen(seconds, seconds, 0, 0.0)
        larger = [seen.seconds / size for size, seen in self.items() if texts < size <= most]
        cost = known.least if shared else known.seconds
        return cost / texts > times * min([*larger, self.estimate(most) / most])

    def estimate(self, texts: int) -> float:
        """Seconds for so many texts: in proportion to the one size that is known, or along the line of two."""
        size = _size(texts)
        if size in self:
            return self[size].seconds * texts / size
        least, most = min(self), max(self)
        low, high = self[least].seconds, self[most].seconds
        if least == most:
            return low * texts / least
        slope = min(max((high - low) / (most - least), 0.0), high / most)
        if texts > most:
            return high + slope * (texts - most)
        return max(low + slope * (texts - least), low * texts / least if texts < least else 0.0)


class _Slot:
    __slots__ = ("_limit", "about", "alone", "earlier", "texts", "urgent")

    def __init__(self, limit: AdaptiveLimit, texts: int, urgent: bool) -> None:
        self._limit, self.texts, self.urgent = limit, texts, urgent
        self.alone, self.earlier, self.about = False, 0, 1

    async def __aenter__(self) -> Slot:
        await self._limit.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._limit.leave(self)

    def answered(self, seconds: float) -> None:
        if not self.urgent:
            self._limit.answered(self, seconds)

    def refused(self, wait: float | None) -> None:
        if not self.urgent:
            self._limit.refused(wait)
