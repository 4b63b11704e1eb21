"""Reciprocal rank fusion and the shape of an answer."""

from __future__ import annotations

import uuid

import pytest

from instep.search.answers import Answer, FoundChunk, Result
from instep.search.fusion import fuse
from instep.search.ports import Facet, query_terms, words_of


def test_ranks_are_summed_and_kept():
    fused = fuse({"dense": [("a",), ("b",), ("c",)], "lexical": [("b",), ("d",)]})
    assert [row.key for row in fused] == [("b",), ("a",), ("d",), ("c",)]
    assert fused[0].ranks == {"dense": 2, "lexical": 1}
    assert fused[0].score == pytest.approx((1 / 62 + 1 / 61) / (2 / 61))
    assert fused[1].ranks == {"dense": 1}
    assert fused[1].score == pytest.approx(0.5)


def test_first_in_every_leg_is_one_and_a_twin_within_a_leg_counts_once():
    fused = fuse({"dense": [("a",), ("a",)], "lexical": [("a",)]})
    assert [(row.key, row.score, row.ranks) for row in fused] == [
        (("a",), pytest.approx(1.0), {"dense": 1, "lexical": 1})
    ]
    assert fuse({"dense": [], "lexical": []}) == []


def test_an_answer_as_scripts_read_it():
    key = uuid.UUID(int=1)
    result = Result(
        (key,),
        0.71234567,
        "a chess game",
        [(2, 7)],
        {"dense": 1, "lexical": 3},
        FoundChunk(0, 3, 9),
        {"s": 1},
    )
    answer = Answer([result], 84, "ok", ["dense", "lexical"], 2, 0.03, {"section": [Facet("games", 4)]})
    assert answer.as_dict() == {
        "results": [
            {
                "key": key,
                "score": 0.7123,
                "text": "a chess game",
                "highlights": [[2, 7]],
                "legs": {"dense": 1, "lexical": 3},
                "chunk": {"ordinal": 0, "start": 3, "end": 9},
                "fields": {"s": 1},
            }
        ],
        "total_about": 84,
        "facets": {"section": [{"value": "games", "count": 4}]},
        "semantic": "ok",
        "legs": ["dense", "lexical"],
        "stale": 2,
        "seconds": 0.03,
        "notes": [],
        "coverage": None,
    }
    assert Result((1, "b"), 1.0, "", [], {}).as_dict()["key"] == [1, "b"]


def test_both_sides_see_the_same_words():
    """private-mind#277: every token that a query asks for is one that the index has of the same text."""
    for text in (
        "全文检索系统",
        "日本語の全文検索エンジン",
        "Full-text C++ node.js don't",
        "ﷺ naïve CAFÉ",
        "x" * 5000,
    ):
        words = set(words_of(text))
        asked = query_terms(text)
        assert asked, text
        assert all(words.issuperset(tokens) for tokens in asked), text
        assert not any(any(c.isspace() for c in word) for word in words), text
