"""Chunks and the lexical index see one text of an entity."""

from __future__ import annotations

import pytest

from instep.text.compose import entity_text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([None, "", "  \n"], ""),
        (["Title", None, "Body"], "Title\n\nBody"),
        ([" Title \n", "<p>One</p><p>Two &amp; three</p>"], "Title\n\nOne\n\nTwo & three"),
        (["if a < b and c > d"], "if a < b and c > d"),
        (["a\x00b\ud83d\ude00\udc00"], "ab😀\ufffd"),
        (["line\r\nline"], "line\nline"),
    ],
)
def test_entity_text(values, text):
    assert entity_text(values) == text
    assert entity_text([text]) == text


def test_character_references_are_cleaned_too():
    text = entity_text(["<p>a&#0;b&#xD800;&#7;c</p>"])
    assert "\x00" not in text
    assert text.encode()
