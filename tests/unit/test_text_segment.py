"""Tokens: the same on both sides, with true spans, and any verbatim piece of a run is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.text.segment import MAX_TOKEN, query_tokens, segment, terms

ANY = st.text(st.characters(exclude_categories=()), max_size=200)
UNSPACED = st.text(st.sampled_from("清华大学自然语言処理食べるカタカナ한국어ก็ภาษา"), min_size=1, max_size=12)


def found(query: str, text: str) -> bool:
    have = {token.text for token in segment(text)}
    wanted = terms(query)
    return bool(wanted) and all(token in have for group in wanted for token in group)


@settings(deadline=None)
@given(ANY)
def test_any_text_has_true_spans(text: str) -> None:
    tokens = segment(text)
    assert [t.start for t in tokens] == sorted(t.start for t in tokens)
    for token in tokens:
        assert 0 <= token.start < token.end <= len(text)
        assert 0 < len(token.text) <= MAX_TOKEN * 18  # one character has at most 18 in its compatibility form
        assert not any(c.isspace() for c in text[token.start : token.end])


@settings(deadline=None)
@given(ANY)
def test_a_text_answers_itself(text: str) -> None:
    """Index and query side agree on every text: what is asked is among what is indexed."""
    assert query_tokens(text) <= {token.text for token in segment(text)}


@settings(deadline=None)
@given(UNSPACED, UNSPACED, UNSPACED)
def test_any_verbatim_piece_of_a_run_is_found(before: str, query: str, after: str) -> None:
    # A mark at the seam would join the character before it: then the query does not stand there verbatim.
    if (query + after)[len(query)] not in "็" and query[0] != "็":
        assert found(query, f"x {before}{query}{after}。 y")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("game", "Two games"),
        ("Libraries", "a library"),
        ("NAIVE", "nai\u0308ve"),
        ("Straße", "STRASSE"),
        ("node.js", "with Node.js."),
        ("js", "Node.js"),
        ("libfoo-dev", "install libfoo-dev now"),
        ("libfoo", "libfoo-dev"),
        ("full-text", "full text"),
        ("l'avion", "un avion"),
        ("avion", "l’avion"),
        ("c++", "C++, Rust"),
        ("C#", "in C#."),
        (".NET", "the .NET way"),
        ("net", "the .NET way"),
        ("foo_bar", "foo_bar()"),
        ("1.5", "version 1.5!"),
        ("Python语言", "使用Ｐｙｔｈｏｎ语言编程"),
        ("ガラス", "ｶﾞﾗｽの"),
        ("か\u3099く", "がく"),
        ("猫", "私の猫です"),
        ("한국", "대한민국 한국어"),
        ("株式", "㍿"),
        ("ёлка", "Ёлка"),
    ],
)
def test_found(query: str, text: str) -> None:
    assert found(query, text)
    assert query_tokens(query)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("C", "C++ and C#"),
        ("C#", "C and C++"),
        ("c++", "c and d"),
        ("node.js", "node and js"),
        ("大北", "北京大学"),
        ("мой", "мои"),
        ("...", "..."),
    ],
)
def test_not_found(query: str, text: str) -> None:
    assert not found(query, text)


def test_dictionary_words_of_three_and_more_are_tokens() -> None:
    assert "清华大学" in {token.text for token in segment("我来到北京清华大学")}


def test_ascii_and_unicode_paths_agree() -> None:
    text = (
        "Node.js C++ c# .NET x.NET libfoo-dev don't a_b __init__ 1.5 e-mail (games) a+b+ +x #y end. ...ab -c-"
    )
    plain = [(t.text, t.start, t.end, t.position) for t in segment(text)]
    assert [(t.text, t.start, t.end, t.position) for t in segment(text + " é")][:-1] == plain


def test_giant_words_are_cut_alike_on_both_sides() -> None:
    giant = "Ab1" * 1000
    assert max(len(t.text) for t in segment(giant)) == MAX_TOKEN
    assert found(giant, f"key {giant} end")


def test_terms_are_given_once_for_each_word() -> None:
    assert terms("Games game 北京大学") == [["game"], ["北京", "京大", "大学"]]
    assert terms(" ,;。 ") == []
