"""How many requests a client has under way at once: the one seam for the adaptive limit."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol


class Limit(Protocol):
    @property
    def highest(self) -> int: ...

    def slot(self, *, urgent: bool) -> AbstractAsyncContextManager[object]:
        """Held by one request from its first try to its last, pauses included: under a throttling server the
        requests that wait for a slot use up no tries."""
        ...


class FixedLimit:
    """A fixed upper bound for bulk requests; urgent ones never wait behind them."""

    def __init__(self, highest: int) -> None:
        self.highest = max(1, highest)
        self._slots = asyncio.Semaphore(self.highest)

    def slot(self, *, urgent: bool) -> AbstractAsyncContextManager[object]:
        return nullcontext() if urgent else self._slots
