"""How many requests a client has under way at once, and how many texts a bulk request may have.

What holds a slot is one try of one request or several with their pauses: under a throttling server the requests that
wait for a slot use up no tries. The limit that adapts to its server is in `adaptive.py`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Slot(Protocol):
    """The right to one request, held with `async with`. What is answered while it is held tells how the server is."""

    texts: int  # that the request may have; set when the slot is had

    async def __aenter__(self) -> Slot: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def answered(self, seconds: float) -> None:
        """A try was answered after so long."""
        ...

    def refused(self, wait: float | None) -> None:
        """The server throttles or is in trouble; `wait`: seconds that it asks for."""
        ...


class Limit(Protocol):
    @property
    def highest(self) -> int: ...

    def slot(self, texts: int, *, urgent: bool) -> Slot:
        """For a request of at most `texts` texts. Urgent ones never wait behind others, and are never cut."""
        ...

    def interactive(self) -> None:
        """Somebody waits for an answer: bulk work makes way, here and in other processes."""
        ...
