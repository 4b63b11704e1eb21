"""One text of an entity, from the values of its text columns.

Chunks and the lexical index both use this function, so that both see one text and spans point into the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from instep.text.clean import clean
from instep.text.html import html_to_text, looks_like_html

SEPARATOR = "\n\n"
"""A paragraph's end: a splitter never joins two columns unless both fit."""


def entity_text(values: Sequence[str | None]) -> str:
    """The columns in order, each without its HTML and cleaned, joined by an empty line; NULL and blank ones leave
    nothing behind. May be empty."""
    return SEPARATOR.join(part for value in values if value and (part := _column_text(value)))


def _column_text(value: str) -> str:
    if value.isprintable() and "<" not in value and "&" not in value:
        return value.strip()  # the common case: no markup, no control character, no broken Unicode
    # Again after the HTML: a character reference can spell what PostgreSQL could not hold.
    text = clean(html_to_text(value)) if looks_like_html(value) else clean(value)
    return text.strip()
