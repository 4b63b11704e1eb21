"""The door to embedding models: what every client is, and what the chunk derivations call.

Every client passes the suite in `instep.testing.embedder_suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from instep.errors import Permanent

if TYPE_CHECKING:
    import numpy as np

Measure = Callable[[str], int]
"""Tokens of one text, the model's special tokens included: it fits when that is at most `Limits.max_tokens`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request takes. A remote client lowers `batch` when the server refuses more."""

    batch: int  # texts in one request
    concurrency: int  # requests at once
    max_tokens: int | None  # of one text, special tokens included; None: not known
    dimensions: int | None  # None: not known before the first answer


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of one call, in the order of its texts."""

    vectors: np.ndarray  # float32 (n, dimensions); the row of a text that failed is zeros
    failures: Mapping[int, Permanent]  # index of a text → why it alone has no vector
    truncated: Collection[int]  # indexes of texts that were cut to the model's limit, as far as is known


class Embedder(Protocol):
    """Turns texts into vectors; raises only errors of `instep.errors` (and is cancelled at any await)."""

    @property
    def name(self) -> str:
        """The model's name: part of a target. A TEI client without a configured model has "" before
        `dimensions()`."""
        ...

    @property
    def limits(self) -> Limits: ...

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embedded:
        """Vectors of `texts`, however many; split into requests as `limits` say. `urgent`: somebody waits."""
        ...

    async def probe(self) -> None:
        """Embed a fixed harmless text, with few tries; raises what `embed` would."""
        ...

    async def dimensions(self) -> int: ...

    def measure(self) -> Measure | None:
        """The token counter of the model's own tokenizer, where it is at hand."""
        ...

    async def close(self) -> None: ...


class Precedence(Protocol):
    """What lets bulk work make way for queries of other processes. Both calls are made often: neither may wait."""

    def announce(self, server: str) -> None:
        """A query is about to be sent to `server`."""
        ...

    def wanted(self, server: str) -> bool:
        """Whether any process has sent a query to `server` a moment ago."""
        ...
