"""Snippets: spans point at what matched, the window is the best one, cuts stand between words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.text.highlight import highlight
from instep.text.segment import query_tokens, segment

ANY = st.text(st.characters(exclude_categories=()) | st.sampled_from("ab  \n北京大学"), max_size=300)


def marked(text: str, query: str, size: int = 160) -> list[str]:
    snippet = highlight(text, query_tokens(query), size=size)
    return [snippet.text[a:b] for a, b in snippet.spans]


@settings(deadline=None)
@given(text=ANY, query=ANY.map(lambda t: t[:12]), size=st.integers(1, 60))
def test_spans_are_in_order_and_within(text: str, query: str, size: int) -> None:
    snippet = highlight(text, query_tokens(query), size=size)
    edges = [edge for span in snippet.spans for edge in span]
    assert edges == sorted(edges)
    assert all(0 <= a < b <= len(snippet.text) for a, b in snippet.spans)
    assert len(snippet.text.strip("…")) <= size
    assert snippet.text.count("  ") == 0
    if size >= len(text) and not snippet.spans:
        assert not query_tokens(query) & {t.text for t in segment(text) if len(t.text) > 1}


@settings(deadline=None)
@given(st.text(st.sampled_from("ab \n"), max_size=80), st.text(st.sampled_from("ab \n"), max_size=80))
def test_a_match_is_marked_with_its_own_text(before: str, after: str) -> None:
    assert marked(f"{before} Needles {after}", "needle", size=40) == ["Needles"]


def test_the_window_with_most_different_words_wins() -> None:
    text = "alpha alpha alpha " + "filler " * 60 + "alpha and beta " + "filler " * 60
    snippet = highlight(text, query_tokens("alpha beta"))
    assert [snippet.text[a:b] for a, b in snippet.spans] == ["alpha", "beta"]
    assert snippet.text.startswith("…filler")
    assert snippet.text.endswith("filler…")


def test_no_match_gives_the_opening() -> None:
    snippet = highlight("one two\n\nthree " * 40, query_tokens("zzz"), size=20)
    assert (snippet.text, snippet.spans) == ("one two three one…", [])
    assert highlight("", []).text == ""


def test_pairs_of_characters_are_marked_as_one_piece() -> None:
    assert marked("我在清华大学读书，大家学习", "清华大学") == ["清华大学"]
    assert marked("我在清华大学读书", "华") == ["华"]


def test_single_characters_of_a_longer_word_are_not_marked() -> None:
    tokens = {t.text for t in segment("北京")}  # a caller who passes all tokens, characters too
    snippet = highlight("东京与北京", tokens)
    assert [snippet.text[a:b] for a, b in snippet.spans] == ["北京"]


def test_text_is_not_escaped() -> None:
    assert highlight("a <b> & c", query_tokens("c")).text == "a <b> & c"


def test_a_word_longer_than_the_snippet_is_clipped() -> None:
    snippet = highlight("x " * 50 + "q" * 300, query_tokens("q" * 300), size=50)
    assert snippet.spans == [(1, 51)]


def test_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        highlight("a", [], size=0)
