"""Where text may be cut without tearing apart what a reader sees as one character.

A working subset of Unicode's extended grapheme clusters (UAX 29): combining marks, joiners, variation selectors,
emoji modifiers and tags, flags, conjoining Hangul, CR LF and surrogate pairs stay whole.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

ZERO_WIDTH_JOINER = "\u200d"


@lru_cache(maxsize=4096)
def extends(character: str) -> bool:
    """True for a character that belongs to the one before it: marks, joiners, selectors, modifiers, jamo."""
    code = ord(character)
    if code < 0x300:
        return False
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me")
        or character in "\u200c\u200d\uff9e\uff9f"  # joiners; half-width voicing marks
        or 0x1160 <= code <= 0x11FF  # Hangul vowels and finals
        or 0xD7B0 <= code <= 0xD7FF
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones
        or 0xE0020 <= code <= 0xE007F  # tags of flags
    )


def is_boundary(text: str, index: int) -> bool:
    """May `text` be cut before `text[index]`? Both ends of the text are boundaries."""
    if index <= 0 or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if after < "\u0300":
        return not (before == "\r" and after == "\n")
    if extends(after) or before == ZERO_WIDTH_JOINER:
        return False
    if _is_flag_letter(after) and _is_flag_letter(before):
        # Flags are pairs: an odd number of letters before means that a pair is open. Sixty-four tell enough.
        start = index
        while start > 0 and index - start < 64 and _is_flag_letter(text[start - 1]):
            start -= 1
        return (index - start) % 2 == 0
    return not ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")


def cut_before(text: str, index: int) -> int:
    """The last boundary at or before `index`; 0 if there is none."""
    index = min(index, len(text))
    while not is_boundary(text, index):
        index -= 1
    return max(index, 0)


def clusters(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of the clusters of `text[start:end]`, in order. Linear, also in a long row of flags."""
    first, flags = start, 0
    for i in range(start, end):
        flag = _is_flag_letter(text[i])
        if i > start and (flags % 2 == 0 if flags and flag else is_boundary(text, i)):
            yield first, i
            first = i
        flags = flags + 1 if flag else 0
    if end > start:
        yield first, end


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
