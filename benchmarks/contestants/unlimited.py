"""instep's worker without its adaptive limit: full requests, as many at once as INSTEP_EMBED_CONCURRENCY says."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from instep.inference import adaptive
from instep.inference.limit import Slot


class FixedLimit:
    """A fixed upper bound for bulk requests, as every client has."""

    def __init__(self, highest: int, **_: Any) -> None:
        self.highest = max(1, highest)
        self.slots = asyncio.Semaphore(self.highest)

    def slot(self, texts: int, *, urgent: bool) -> Slot:
        return _FixedSlot(None if urgent else self.slots, texts)

    def interactive(self) -> None: ...


class _FixedSlot:
    def __init__(self, slots: asyncio.Semaphore | None, texts: int) -> None:
        self._slots, self.texts = slots, texts

    async def __aenter__(self) -> Slot:
        if self._slots is not None:
            await self._slots.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slots is not None:
            self._slots.release()

    def answered(self, seconds: float) -> None: ...

    def refused(self, wait: float | None) -> None: ...


def unlimit() -> None:
    """From now on, in this process."""
    adaptive.AdaptiveLimit = FixedLimit  # type: ignore[assignment,misc]
