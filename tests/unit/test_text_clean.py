"""The gate: what PostgreSQL or a tokenizer would refuse never passes it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.text.clean import clean, printable_error
from instep.text.graphemes import clusters, cut_before, is_boundary

ANY = st.text(st.characters(exclude_categories=()))  # surrogates included


@settings(deadline=None)
@given(ANY)
def test_any_text_becomes_storable(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode("utf-8")  # raises for a surrogate
    assert all(c in "\n\t" or unicodedata.category(c) != "Cc" for c in cleaned)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("wo\0\0rd", "word"),
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g", "a\nb\nc\nd\ne\nf\ng"),
        ("a\r\0\nb", "a\nb"),
        ("a\u2029b", "a\n\nb"),
        ("x\ud800y\udfff", "x\ufffdy\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\0\ude00", "😀"),
        ("\ufeffe\u0301 👩‍👩‍👧 \t.", "e\u0301 👩‍👩‍👧 \t."),
        ("\x1b[31mred\x9b", "[31mred"),
    ],
)
def test_rules(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_errors_are_bounded_and_named() -> None:
    assert printable_error(ValueError("bad \0 text\ud800")) == "bad  text\ufffd"
    assert printable_error(TimeoutError()) == "TimeoutError"
    assert printable_error("") == ""
    assert printable_error("abcdef", 4) == "abc…"
    assert printable_error("abe\u0301f", 4) == "ab…"  # not between a letter and its accent
    with pytest.raises(ValueError, match="at least 1"):
        printable_error("x", 0)


@settings(deadline=None)
@given(ANY, st.integers(1, 20))
def test_errors_never_exceed_the_limit(text: str, limit: int) -> None:
    assert len(printable_error(text, limit)) <= limit


@pytest.mark.parametrize(
    "cluster", ["e\u0301", "👩‍👩‍👧", "👍🏽", "🇩🇪", "각", "か\u3099", "\ud83d\ude00", "✈\ufe0f", "\r\n"]
)
def test_clusters_stay_whole(cluster: str) -> None:
    text = f"a{cluster}{'🇫🇷' if cluster == '🇩🇪' else 'b'}"
    assert [i for i in range(1, len(text)) if is_boundary(text, i)][:2] == [1, 1 + len(cluster)]
    assert cut_before(text, len(cluster)) == 1
    assert (1, 1 + len(cluster)) in list(clusters(text, 0, len(text)))
