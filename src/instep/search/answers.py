"""What a search gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from instep.engine.declaration import Key
from instep.search.ports import Facet

Mode = Literal["dense", "lexical", "hybrid"]
Semantic = Literal["ok", "unavailable", "off"]


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """The chunk that the dense leg hit: `start` and `end` in characters of the entity's text as it is now (`ordinal`
    from 0); None where the row changed and only the chunk's text is still the same."""

    ordinal: int | None
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """One row. `text` is a snippet of its current text, `highlights` are (start, end) in it."""

    key: Key
    score: float
    text: str
    highlights: Sequence[tuple[int, int]]
    legs: Mapping[str, int]  # leg → rank in it, from 1
    chunk: FoundChunk | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # the columns to show, as JSON values

    def as_dict(self) -> dict[str, Any]:
        """As `instep search --json` prints it; a key of one column stands alone."""
        chunk = self.chunk
        return {
            "key": self.key[0] if len(self.key) == 1 else list(self.key),
            "score": round(self.score, 4),
            "text": self.text,
            "highlights": [list(span) for span in self.highlights],
            "legs": dict(self.legs),
            "chunk": {"ordinal": chunk.ordinal, "start": chunk.start, "end": chunk.end} if chunk else None,
            "fields": dict(self.fields),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """`legs`: those that answered. `semantic`: `ok`, `unavailable` (keyword results alone, `notes` say why) or `off`
    (not asked for). `stale`: candidates that were dropped because their rows are gone or say something else by now."""

    results: Sequence[Result]
    total_about: int
    semantic: Semantic
    legs: Sequence[str]
    stale: int
    seconds: float
    facets: Mapping[str, Sequence[Facet]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    coverage: float | None = None  # share of the rows that are embedded, where the caller knows it

    def as_dict(self) -> dict[str, Any]:
        """As `instep search --json` prints it."""
        return {
            "results": [result.as_dict() for result in self.results],
            "total_about": self.total_about,
            "facets": {
                name: [{"value": facet.value, "count": facet.count} for facet in counted]
                for name, counted in self.facets.items()
            },
            "semantic": self.semantic,
            "legs": list(self.legs),
            "stale": self.stale,
            "seconds": round(self.seconds, 4),
            "notes": list(self.notes),
            "coverage": self.coverage,
        }
