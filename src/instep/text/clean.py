"""The one gate for text that reaches a database or a model. Error messages pass it too.

Decided here, and part of every target's name through the version of its splitter (content hashes are made in SQL
over the raw columns, so a change here changes no hash: raise the version instead):
- NUL and other control characters vanish, so a word with a NUL inside becomes the whole word again;
- CR LF, CR, vertical tab, form feed, NEL and LINE SEPARATOR are a line break, PARAGRAPH SEPARATOR is two;
- the two halves of a surrogate pair become the character they mean, a lone one becomes U+FFFD, so a loss is seen;
- U+FEFF (byte order mark) vanishes wherever it stands;
- nothing is composed (no NFC): the text stays the user's, spans point into it, and tokenizers and `segment`
  normalise for themselves. Combining marks and characters beyond U+FFFF stay as they are.

Spans, lengths and chunks are computed on cleaned text. Cleaning twice is cleaning once.
"""

from __future__ import annotations

import re

from instep.text.graphemes import cut_before

_SUSPECT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TABLE: dict[int, str | None] = {
    **dict.fromkeys((*range(0x09), *range(0x0E, 0x20), *range(0x7F, 0xA0), 0xFEFF)),
    **dict.fromkeys((0x0B, 0x0C, 0x0D, 0x85, 0x2028), "\n"),
    0x2029: "\n\n",
}


def clean(text: str) -> str:
    """Text that PostgreSQL, JSON and every tokenizer take: see the module for the rules. Never raises."""
    if not _SUSPECT.search(text):
        return text
    # Controls go first: what stands between CR and LF, or between the halves of a pair, must not keep them apart.
    text = re.sub(r"\r[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]*\n", "\n", text).translate(_TABLE)
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def printable_error(error: BaseException | str, limit: int = 2000) -> str:
    """An error message fit to be stored: cleaned, stripped, at most `limit` characters with an ellipsis if cut.

    An exception without a message gives the name of its class. `limit` is at least 1.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}: it must be at least 1")
    message = error if isinstance(error, str) else str(error)
    message = clean(message).strip()
    if not message and not isinstance(error, str):
        message = type(error).__name__
    if len(message) > limit:
        message = message[: cut_before(message, limit - 1)].rstrip() + "…"
    return message
