"""Splitting text into chunks under a budget, with boundaries that an edit elsewhere does not move.

Paragraphs, then lines, sentences, words, characters: the coarsest that fit. Invariants, each with its test in
tests/unit/test_text_split.py:
- `chunk.text == source[chunk.start:chunk.end]`, without white space at either end (test_spans);
- nothing but white space is lost, chunks are in order, and overlap only where `overlap` asks (test_nothing_lost);
- no chunk measures more than the budget, but for a single character that does so alone (test_budget);
- one changed, added or removed paragraph changes the chunks around it and no other (test_edit_is_local): where it
  is no shorter than an eighth of the budget, exactly its own (test_one_of_fifty).
Why so, and not packed as full as possible: docs/decisions/0002-local-chunk-boundaries.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from instep.text.units import PARAGRAPH, Unit, finer, paragraphs, priority, separator

STANDALONE = 8  # a paragraph of at least budget / STANDALONE is a chunk of its own


class Measure(Protocol):
    """Sizes of texts, in runes or in tokens of a model (without its special tokens), one for each text, in order.

    Called with many texts at once, because a tokenizer call for each word is slow.
    """

    def __call__(self, texts: Sequence[str]) -> Sequence[int]: ...


def runes(texts: Sequence[str]) -> list[int]:
    """The measure in code points."""
    return list(map(len, texts))


@dataclass(frozen=True, slots=True)
class Chunk:
    """`text == source[start:end]` exactly; neither end is white space. Spans count code points of the source."""

    ordinal: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Splitter:
    """`name` is a part of the target's name: whatever changes a chunk must change it.

    `overlap`, in the measure's unit, is repeated before a chunk that begins in the middle of a paragraph, and only
    there: a boundary between paragraphs cuts nothing apart. It counts towards the budget.
    """

    name: str
    budget: int
    measure: Measure
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.budget < 1 or not 0 <= self.overlap < self.budget:
            raise ValueError(
                f"budget {self.budget}, overlap {self.overlap}: need 0 <= overlap < budget, budget >= 1"
            )

    @classmethod
    def of_runes(cls, budget: int, overlap: int = 0) -> Splitter:
        """Chunks of at most `budget` code points: `chunked-1000c-v1`."""
        return cls(_name(budget, "c", overlap), budget, runes, overlap)

    @classmethod
    def of_tokens(cls, budget: int, measure: Measure, overlap: int = 0) -> Splitter:
        """Chunks of at most `budget` tokens of the model's tokenizer: `chunked-256t-v1`."""
        return cls(_name(budget, "t", overlap), budget, measure, overlap)

    def split(self, text: str) -> list[Chunk]:
        """The chunks of one cleaned text; none for white space alone."""
        return self.split_many([text])[0]

    def split_many(self, texts: Sequence[str]) -> list[list[Chunk]]:
        """The same for many texts, whose paragraphs are measured in one call."""
        parts = [paragraphs(text) for text in texts]
        sizes = iter(
            self.measure([text[a:b] for text, spans in zip(texts, parts, strict=True) for a, b, _ in spans])
        )
        split = []
        for text, spans in zip(texts, parts, strict=True):
            units = [Unit(a, b, level, next(sizes)) for a, b, level in spans]
            split.append(_Packing(self, text).chunks(units))
        return split


def _name(budget: int, unit: str, overlap: int) -> str:
    return f"chunked-{budget}{unit}" + (f"-overlap-{overlap}" if overlap else "") + "-v1"


class _Packing:
    """The work on one text: units (pieces that fit the budget, in order) become segments, segments chunks."""

    def __init__(self, splitter: Splitter, text: str) -> None:
        self.text = text
        self.measure = splitter.measure
        self.budget = splitter.budget - splitter.overlap
        self.overlap = splitter.overlap
        self.alone = max(1, self.budget // STANDALONE)
        self.gaps: dict[str, int] = {}
        self.units: list[Unit] = []
        self.priorities: list[int] = []

    def chunks(self, units: list[Unit]) -> list[Chunk]:
        units = self._fitting(units)
        if not units:
            return []
        self._measure_gaps(units)
        self.units = units
        whole = range(len(units))
        if self._size(whole) <= self.budget:
            segments = [whole]
        else:
            self.priorities = [priority(self.text, unit) for unit in units]
            segments = self._packed()
        segments = self._checked(segments)
        spans = [(units[s.start].start, units[s.stop - 1].end) for s in segments]
        if self.overlap:
            spans = self._overlapping(segments, spans)
        return [Chunk(i, a, b, self.text[a:b]) for i, (a, b) in enumerate(spans)]

    def _fitting(self, units: list[Unit]) -> list[Unit]:
        """Units over the budget give way to their lines, sentences, words, characters, all of one level in one
        call of the measure."""
        while True:
            pieces = {
                i: finer(self.text, u, self.budget) for i, u in enumerate(units) if u.size > self.budget
            }
            pieces = {i: spans for i, spans in pieces.items() if spans}
            if not pieces:
                return units
            sizes = iter(self.measure([self.text[a:b] for spans in pieces.values() for a, b, _, _ in spans]))
            refined: list[Unit] = []
            for i, unit in enumerate(units):
                if i in pieces:
                    refined.extend(Unit(a, b, level, next(sizes), depth) for a, b, level, depth in pieces[i])
                else:
                    refined.append(unit)
            units = refined

    def _measure_gaps(self, units: list[Unit]) -> None:
        gaps = list({separator(self.text, left, right) for left, right in pairwise(units)} - {""})
        self.gaps = dict(zip(gaps, self.measure(gaps), strict=True)) if gaps else {}
        self.gaps[""] = 0
        total = 0
        for i, unit in enumerate(units):
            if i:
                total += self.gaps[separator(self.text, units[i - 1], unit)]
            unit.before = total
            total += unit.size
            unit.after = total

    def _size(self, segment: range) -> int:
        return self.units[segment.stop - 1].after - self.units[segment.start].before

    def _packed(self) -> list[range]:
        """Paragraphs of some size stand alone, runs of shorter ones and the pieces of a longer one are packed
        among themselves, and a short run, a heading say, goes with what follows it."""
        groups: list[tuple[str, range]] = []
        for i, unit in enumerate(self.units):
            if unit.is_fragment:
                kind, continues = "pieces", not unit.opens_line
            elif unit.size >= self.alone:
                kind, continues = "alone", False
            else:
                kind, continues = "run", bool(groups) and groups[-1][0] == "run"
            if continues:
                groups[-1] = (kind, range(groups[-1][1].start, i + 1))
            else:
                groups.append((kind, range(i, i + 1)))
        segments: list[range] = []
        heading: range | None = None
        for at, (kind, group) in enumerate(groups):
            if heading is not None:
                joined = range(heading.start, group.stop)
                if kind == "alone" and self._size(joined) <= self.budget:
                    segments.append(joined)
                    heading = None
                    continue
                segments.append(heading)
                heading = None
            if kind == "run" and self._size(group) < self.alone:
                if at + 1 < len(groups):
                    heading = group
                    continue
                if groups[at - 1][0] == "alone" and segments:
                    joined = range(segments[-1].start, group.stop)
                    if self._size(joined) <= self.budget:
                        segments[-1] = joined
                        continue
            segments.extend([group] if kind == "alone" else self._cut(group))
        return segments

    def _cut(self, group: range) -> list[range]:
        """Cut at the boundary of highest priority until every part fits. Priorities are the content's own, so a
        part is cut alike wherever it stands."""
        done: list[range] = []
        waiting = [group]
        while waiting:
            part = waiting.pop()
            if len(part) == 1 or self._size(part) <= self.budget:
                done.append(part)
            else:
                at = self._highest(part)
                waiting += [range(at, part.stop), range(part.start, at)]
        return done

    def _highest(self, part: range) -> int:
        inner = self.priorities[part.start + 1 : part.stop]
        highest = max(inner)
        if inner.count(highest) == 1:
            return part.start + 1 + inner.index(highest)
        middle = len(inner) // 2  # equal texts: the one nearest to the middle, so that parts come out even
        nearest = min((i for i, p in enumerate(inner) if p == highest), key=lambda i: abs(i - middle))
        return part.start + 1 + nearest

    def _checked(self, segments: list[range]) -> list[range]:
        """A tokenizer may count more for the whole than for its parts: what is over the budget is cut again."""
        joined = [s for s in segments if len(s) > 1]
        while joined:
            texts = [self.text[self.units[s.start].start : self.units[s.stop - 1].end] for s in joined]
            over = {s for s, size in zip(joined, self.measure(texts), strict=True) if size > self.budget}
            if not over:
                break
            if not self.priorities:
                self.priorities = [priority(self.text, unit) for unit in self.units]
            cut: list[range] = []
            joined = []
            for segment in segments:
                if segment in over:
                    at = self._highest(segment)
                    halves = [range(segment.start, at), range(at, segment.stop)]
                    cut += halves
                    joined += [half for half in halves if len(half) > 1]
                else:
                    cut.append(segment)
            segments = cut
        return segments

    def _overlapping(self, segments: list[range], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Chunks that begin within a paragraph reach back over whole units worth at most `overlap`."""
        reached = []
        for segment, (start, end) in zip(segments, spans, strict=True):
            first = segment.start
            while first > 0 and self.units[first].level < PARAGRAPH:
                reach = self.units[segment.start].before - self.units[first - 1].before
                if reach > self.overlap:
                    break
                first -= 1
                start = self.units[first].start
            reached.append((start, end))
        sizes = self.measure([self.text[a:b] for a, b in reached])
        most = self.budget + self.overlap
        return [
            long if size <= most else short for long, short, size in zip(reached, spans, sizes, strict=True)
        ]
