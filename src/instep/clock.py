"""Time and randomness, from one place, so that tests can replace them.

Leases are judged by the database's clock, never by this one (test: postgres/test_outbox.py).
"""

from __future__ import annotations

import random
import secrets
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...  # wall clock, UTC; for display and file stamps only
    def monotonic(self) -> float: ...  # seconds; for durations and deadlines
    def uniform(self, low: float, high: float) -> float: ...  # jitter
    def token(self) -> int: ...  # a fencing token: random, because a sequence can go back after a crash


class SystemClock:
    """The real clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def token(self) -> int:
        return secrets.randbits(62) + 1


SYSTEM = SystemClock()
