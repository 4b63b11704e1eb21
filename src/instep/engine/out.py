"""Targets whose backend is out: each is left alone for a while, and no other target waits for it.

Guarded by tests/faults/test_provider.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from instep.clock import Clock
from instep.engine.failures import Stopped

PAUSE_SECONDS = (5.0, 60.0)  # first and longest, where the server does not say how long
LEAST_SECONDS = 1.0  # where it says less


@dataclass(frozen=True, slots=True)
class _Out:
    stopped: Stopped
    pause: float
    until: float


class Out(dict[str, _Out]):
    """By the target's name. `again`: they are tried again by and by; else they are out for the whole run."""

    def __init__(self, clock: Clock, *, again: bool) -> None:
        super().__init__()
        self._clock, self._again = clock, again

    def add(self, target: str, stopped: Stopped) -> float:
        """Seconds until it is tried again: as many as the server asked for and no more, else twice as many each time."""
        pause = min(self[target].pause * 2, PAUSE_SECONDS[1]) if target in self else PAUSE_SECONDS[0]
        asked = stopped.retry_after
        seconds = pause if asked is None else max(asked, LEAST_SECONDS)
        self[target] = _Out(stopped, pause, self._clock.monotonic() + seconds)
        return seconds

    def waits(self, target: str) -> bool:
        out = self.get(target)
        return out is not None and (not self._again or self._clock.monotonic() < out.until)

    def soonest(self, most: float) -> float:
        """Seconds until one may be tried again, at most `most`."""
        now = self._clock.monotonic()
        return min([most, *(max(out.until - now, 0.0) for out in self.values())])

    def raise_first(self) -> None:
        """What ended a run that does not try again."""
        for out in self.values():
            raise out.stopped
