"""The pieces that text is split into: paragraphs, lines, sentences, words, characters, and how strong the boundary
before each is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

from instep.text.graphemes import clusters, is_boundary

# Strength of the boundary before a unit.
CODE_POINT, CHARACTER, WORD, SENTENCE, LINE, LINE_AFTER_SENTENCE, PARAGRAPH = range(7)

# What a unit is (`Unit.depth`): how far its paragraph was taken apart.
_WHOLE, _LINES, _SENTENCES, _WORDS, _RUNS, _CHARACTERS, _CODE_POINTS = range(7)

_BLANK_LINES = re.compile(r"(?:\r\n|\n|\r|\u2029)[^\S\n\r\u2029]*(?:\r\n|\n|\r|\u2029)\s*|\u2029\s*")
_LINE_BREAK = re.compile(r"[\n\r\u2028\x85]")
# Looking back for the full stop keeps a million dots linear.
_SENTENCE_END = re.compile(r"[。！？｡][。！？｡”’」』）)\"']*\s*|(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+")
_WORD_END = re.compile(r"\s+|[、，；：､]\s*")
_ENDS_SENTENCE = ".!?:;…。！？：；｡"


@dataclass(slots=True)
class Unit:
    """A piece without white space at its ends. `before` and `after` are running sizes, separators included."""

    start: int
    end: int
    level: int
    size: int
    depth: int = _WHOLE
    before: int = 0
    after: int = 0

    @property
    def is_fragment(self) -> bool:
        """A piece of a line, and neither a whole line nor a paragraph."""
        return self.depth >= _SENTENCES

    @property
    def opens_line(self) -> bool:
        return self.level >= LINE


def paragraphs(text: str) -> list[tuple[int, int, int]]:
    """(start, end, PARAGRAPH) of each block between blank lines."""
    return [(a, b, PARAGRAPH) for a, b in _visible(text, _between(text, 0, len(text), _BLANK_LINES))]


def finer(text: str, unit: Unit, budget: int) -> list[tuple[int, int, int, int]]:
    """(start, end, level, depth) of the next finer pieces of a unit that is too large, or nothing where there are
    none: a single code point. The first piece keeps the unit's own boundary."""
    start, end, depth = unit.start, unit.end, unit.depth
    while depth < _CODE_POINTS:
        depth += 1
        if depth == _LINES:
            spans, level = _between(text, start, end, _LINE_BREAK), LINE
        elif depth == _SENTENCES:
            spans, level = _after(text, start, end, _SENTENCE_END), SENTENCE
        elif depth == _WORDS:
            spans, level = _after(text, start, end, _WORD_END), WORD
        elif depth == _RUNS:
            spans, level = _runs(text, start, end, max(1, budget // 4)), CHARACTER
        elif depth == _CHARACTERS:
            spans, level = list(clusters(text, start, end)), CHARACTER
        else:
            spans, level = [(i, i + 1) for i in range(start, end)], CODE_POINT
        spans = _visible(text, spans)
        if len(spans) > 1:
            pieces = []
            for i, (a, b) in enumerate(spans):
                own = level
                if i == 0:
                    own = unit.level
                elif level == LINE and text[spans[i - 1][1] - 1] in _ENDS_SENTENCE:
                    own = LINE_AFTER_SENTENCE
                pieces.append((a, b, own, depth))
            return pieces
    return []


def separator(text: str, left: Unit, right: Unit) -> str:
    """What stands between two neighbours: white space or nothing."""
    return text[left.end : right.start]


def priority(text: str, unit: Unit) -> int:
    """How strongly the text wants to be cut before this unit: by level, then by a hash of the unit itself, so that
    it depends on nothing that stands elsewhere."""
    return unit.level << 32 | crc32(text[unit.start : unit.end].encode("utf-8", "surrogatepass"))


def _between(text: str, start: int, end: int, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """The spans between matches."""
    spans = []
    position = start
    for match in pattern.finditer(text, start, end):
        spans.append((position, match.start()))
        position = match.end()
    spans.append((position, end))
    return spans


def _after(text: str, start: int, end: int, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """The spans that end after a match, which belongs to the span before it."""
    spans = []
    position = start
    for match in pattern.finditer(text, start, end):
        if is_boundary(text, match.end()):
            spans.append((position, match.end()))
            position = match.end()
    spans.append((position, end))
    return spans


def _visible(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans without white space at their ends, those that are nothing else left out."""
    return [span for a, b in spans if (span := _stripped(text, a, b))[0] < span[1]]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _runs(text: str, start: int, end: int, longest: int) -> list[tuple[int, int]]:
    """Runs of at most `longest` code points that end where the content says so: after one character in sixteen,
    chosen by its code. Unbroken text (a key, Chinese without punctuation) then splits alike after an edit."""
    marked = {c for c in set(text[start:end]) if (ord(c) * 2654435761 >> 16) & 15 == 0}
    spans = []
    first = start
    for i in range(start + 1, end):
        if (text[i - 1] in marked or i - first >= longest) and is_boundary(text, i):
            spans.append((first, i))
            first = i
    spans.append((first, end))
    return spans
