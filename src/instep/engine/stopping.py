"""How a run is asked to stop: gently, at once, or not at all."""

from __future__ import annotations

import asyncio


class Stop:
    """SIGINT asks to finish what is being computed or committed; SIGTERM releases all (the task is cancelled)."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def finishing(self) -> bool:
        return self._event.is_set()

    def finish(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Sleep; True as soon as the run shall finish."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
