"""Limits by key: a token bucket for each caller, in this process."""

from __future__ import annotations

from collections import OrderedDict

from instep.clock import Clock

BURST_SECONDS = 10.0  # a caller that was quiet may send at once what is allowed in so many seconds
MOST_CALLERS = (
    10_000  # buckets that are remembered; the one unused for longest goes first, and is full by then
)


class Limits:
    """`per_minute`: requests of one caller; 0: no limit. `burst`: seconds' worth of them that may come at once."""

    def __init__(self, per_minute: int, clock: Clock, burst: float = BURST_SECONDS) -> None:
        self._rate, self._clock = per_minute / 60.0, clock
        self._size = max(1.0, self._rate * burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller → tokens, as of when

    def take(self, caller: str) -> float:
        """Take one token: 0.0, or the seconds until there is one."""
        if self._rate <= 0:
            return 0.0
        now = self._clock.monotonic()
        tokens, then = self._buckets.get(caller, (self._size, now))
        tokens = min(self._size, tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1.0 else (1.0 - tokens) / self._rate
        self._buckets[caller] = (tokens if wait else tokens - 1.0, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return wait
