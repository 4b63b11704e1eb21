"""Faults that somebody really met, from public bug reports: each test names where it was seen."""

from __future__ import annotations

import inspect

import pytest

from instep.text import highlight as highlight_module
from instep.text import segment as segment_module
from instep.text.clean import clean, printable_error
from instep.text.highlight import highlight
from instep.text.html import html_to_text
from instep.text.segment import query_tokens, segment, terms
from instep.text.split import Splitter

CHINESE = "机器学习模型的训练数据需要定期更新，否则预测结果会逐渐失去准确性。"
JAPANESE = "東京都では自然言語処理の研究が盛んに行われているそうです。"


@pytest.mark.parametrize("seen_in", ["LightRAG#3308", "khora#1528", "utopia#611"])
def test_nul_in_a_text_layer_is_gone_before_spans_are_computed(seen_in: str) -> None:
    raw = "First para\0graph here.\n\n\0\0\0\n\nSecond\0\0 one after."
    text = clean(raw)
    chunks = Splitter.of_runes(25).split(text)
    assert [c.text for c in chunks] == ["First paragraph here.", "Second one after."]
    assert all(c.text == text[c.start : c.end] for c in chunks)
    tokens = {t.text for t in segment(text)}
    assert query_tokens("paragraph after") <= tokens


def test_weknora_2700_nul_in_a_heading_and_in_an_error_message() -> None:
    assert clean("Chap\0ter 1") == "Chapter 1"
    assert "\0" not in printable_error(ValueError("refused: \0 at 4"))


@pytest.mark.parametrize("seen_in", ["edda#402", "claude-obsidian#120", "hindsight#1077"])
@pytest.mark.parametrize("length", [2, 4, 6])
@pytest.mark.parametrize("text", [CHINESE, JAPANESE])
def test_every_verbatim_query_inside_a_longer_run_is_found(seen_in: str, length: int, text: str) -> None:
    have = {t.text for t in segment(text)}
    queries = [text[i : i + length] for i in range(len(text) - length + 1)]
    for query in (q for q in queries if q.isalpha()):
        wanted = terms(query)
        assert wanted
        assert all(token in have for group in wanted for token in group), query
        snippet = highlight(text, query_tokens(query))
        assert any(query in snippet.text[a:b] for a, b in snippet.spans), query


def test_private_mind_277_both_sides_use_one_function() -> None:
    # What a query asks is always among what the same text would be indexed as …
    for text in (CHINESE, JAPANESE, "Plain words, node.js and C++", "混合mixed文字"):
        assert query_tokens(text) <= {t.text for t in segment(text)}
    # … because both read words and runs through the same two functions, and highlights use `segment` itself.
    for side in (segment_module.segment, segment_module.terms):
        assert "_word(" in inspect.getsource(side)
    assert highlight_module.segment is segment_module.segment


def test_freehire_docs_greenhouse_content_escaped_once_more_than_expected() -> None:
    text = html_to_text("&lt;div&gt;&lt;p&gt;R&amp;amp;D &amp;ndash; we build&lt;/p&gt;&lt;/div&gt;")
    assert text == "R&D – we build"


def test_freehire_docs_a_rich_text_field_with_nothing_in_it_makes_no_chunk() -> None:
    text = html_to_text("<p>&nbsp;</p>")
    assert text == ""
    assert Splitter.of_runes(1000).split(text) == []
