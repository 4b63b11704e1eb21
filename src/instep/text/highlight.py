"""The best piece of a text to show for a query, with the spans of what matched.

Text stays plain: nothing is escaped and no mark is put in. Each face (terminal, JSON, page) marks the spans in its
own way and does its own escaping.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from instep.text.graphemes import cut_before, is_boundary
from instep.text.segment import segment

_SPACES = re.compile(r"\s+")
_REACH = 24  # how far a cut is moved to stand between words


@dataclass(frozen=True, slots=True)
class Snippet:
    """`spans` are (start, end) in `text`, in order, apart from each other, in code points."""

    text: str
    spans: list[tuple[int, int]] = field(default_factory=list)


def highlight(text: str, query_tokens: Collection[str], *, size: int = 160) -> Snippet:
    """At most `size` characters of `text` (an ellipsis at each cut end not counted), where most of the different
    query tokens stand, then most of all; the opening and no spans if none does. White space becomes single spaces.

    `query_tokens` are those of `segment.query_tokens(query)`. A single character that is also part of a longer
    query token is not marked by itself.
    """
    if size < 1:
        raise ValueError(f"size is {size}: it must be at least 1")
    longer = "".join(token for token in query_tokens if len(token) > 1 and not token.isascii())
    wanted = {token for token in query_tokens if len(token) > 1 or token not in longer}
    matches = [(t.start, t.end, t.text) for t in segment(text) if t.text in wanted] if wanted else []
    first, last = _window(matches, size)
    start, end = _extent(text, first, last, size)
    spans = _merged([(max(a, start), min(b, end)) for a, b, _ in matches if a < end and b > start])
    return _squeezed(text, start, end, spans)


def _window(matches: list[tuple[int, int, str]], size: int) -> tuple[int, int]:
    """From the first to the last match of the best window of `size` characters."""
    if not matches:
        return 0, 0
    inside: Counter[str] = Counter()
    best, found = (0, 0), (matches[0][0], matches[0][1])
    left = 0
    for right, (_, end, token) in enumerate(matches):
        inside[token] += 1
        while left < right and end - matches[left][0] > size:
            gone = matches[left][2]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            left += 1
        score = (len(inside), right - left + 1)
        if score > best:
            best, found = score, (matches[left][0], max(end, matches[left][1]))
    return found


def _extent(text: str, first: int, last: int, size: int) -> tuple[int, int]:
    """The matches with an even share of context, cut between words, never within a character."""
    spare = max(0, size - (last - first))
    # A third of the room goes before the match, what the text's ends leave over goes to the other side.
    start = max(0, first - spare // 3)
    end = min(len(text), start + size)
    start = max(0, min(start, end - size))
    if start > 0:
        for i in range(start, min(start + _REACH, first)):
            if text[i - 1].isspace():
                start = i
                break
        while start < first and not is_boundary(text, start):
            start += 1
    if end < len(text):
        floor = max(last, end - _REACH, start + 1)
        for i in range(end, floor, -1):
            if text[i].isspace() or text[i - 1].isspace():
                end = i
                break
        end = max(cut_before(text, end), min(last, end), start + 1)
    return start, min(end, len(text))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _squeezed(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> Snippet:
    """The piece with single spaces and ellipses, and the spans moved along."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    lead = "…" if text[:start].strip() else ""
    tail = "…" if text[end:].strip() else ""
    edges = [edge for span in spans for edge in span]
    moved: list[int] = []
    pieces = [lead]
    length, position, at = len(lead), start, 0

    def copy(upto: int) -> None:
        nonlocal length, position, at
        while at < len(edges) and edges[at] <= upto:
            moved.append(length + max(0, edges[at] - position))
            at += 1
        pieces.append(text[position:upto])
        length += upto - position
        position = upto

    for match in _SPACES.finditer(text, start, end):
        copy(match.start())
        pieces.append(" ")
        length += 1
        position = match.end()
    copy(end)
    pieces.append(tail)
    return Snippet("".join(pieces), list(zip(moved[::2], moved[1::2], strict=True)))
