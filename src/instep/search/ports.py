"""The search room's doors: what an index is, what goes into it and what comes out.

Both engines pass `instep.testing.index_suite`. A key is in an index at most once; a document's `words` and a query's
`terms` come from one module, `instep.text.segment`, by way of the two functions here and nothing else in this room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from instep.engine.declaration import Key
from instep.search.filters import Filter
from instep.text.clean import clean
from instep.text.segment import segment, terms

Match = Literal["all", "any"]
Terms = tuple[tuple[str, ...], ...]
"""The words of a query, each with the tokens that a document which has the word holds all of."""

MAX_QUERY_WORDS = 256


def words_of(text: str) -> list[str]:
    """The words of a text, in order, as both sides of both engines see them; no word holds white space."""
    return [_word(token.text) for token in segment(text)]


def query_terms(text: str) -> Terms:
    """The words of a query, at most MAX_QUERY_WORDS. Never raises; none for "?!"."""
    return tuple(tuple(map(_word, group)) for group in terms(clean(text))[:MAX_QUERY_WORDS])


def _word(token: str) -> str:
    """A few ligatures (U+FDFA) are normalised to several words: one word to us, on both sides."""
    return token.replace(" ", "_") if " " in token else token


@dataclass(frozen=True, slots=True)
class Document:
    """What an index holds of one row. `fields`: filter column to value as `Column.encoded` reads it."""

    key: Key
    words: str  # the segmented text, joined by spaces
    fields: Mapping[str, Any] = field(default_factory=dict)


def document(key: Key, text: str, fields: Mapping[str, Any] | None = None) -> Document:
    return Document(key, " ".join(words_of(text)), fields or {})


@dataclass(frozen=True, slots=True)
class Query:
    """`match`: whether a hit holds all words or any of them. A query without words hits nothing."""

    terms: Terms
    filter: Filter | None = None
    limit: int = 10
    match: Match = "all"
    facets: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    key: Key
    score: float  # of this engine: comparable within one answer only


@dataclass(frozen=True, slots=True)
class Facet:
    value: str | int | float | bool
    count: int


@dataclass(frozen=True, slots=True)
class Hits:
    """The best hits, best first; `total` counts all of them."""

    hits: Sequence[Hit]
    total: int
    facets: Mapping[str, Sequence[Facet]] = field(default_factory=dict)


FACET_VALUES = 10


class Index(Protocol):
    """A lexical index of one target."""

    async def apply(self, epoch: int, remove: Sequence[Key], add: Sequence[Document]) -> None:
        """Removes before it adds, and replaces what a key had; idempotent; all of it or nothing is seen."""
        ...

    async def search(self, query: Query) -> Hits:
        """Raises Outage where the index cannot be read."""
        ...

    async def matching(self, query: Query, after: Key | None) -> Sequence[Key]:
        """The keys of hits, in the order of keys, from the first one after `after`; at most `query.limit`."""
        ...

    def keys(self) -> AsyncIterator[Key]:
        """Each key that is in the index, for reconciliation."""
        ...
