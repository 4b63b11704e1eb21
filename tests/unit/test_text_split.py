"""Chunks: within the budget, nothing lost, and an edit changes nothing far off (the module names these tests)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.text.graphemes import is_boundary
from instep.text.split import Chunk, Splitter

ANY = st.text(st.characters(exclude_categories=()), max_size=300)
ROUGH = st.lists(
    st.sampled_from(
        [
            "a",
            "word",
            "\n",
            "\n\n",
            " ",
            ". ",
            "。",
            "清华",
            "e\u0301",
            "👩‍👩‍👧",
            "\ud83d",
            "\ude00",
            "🇩🇪",
            "\r\n",
        ]
    ),
    max_size=80,
).map("".join)


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def greedy_tokenizer(texts: Sequence[str]) -> list[int]:
    """Counts more for a whole than for its parts, as tokenizers may."""
    return [len(text) + text.count(" ") + text.count("\n") * 3 for text in texts]


SPLITTERS = [
    Splitter.of_runes(1),
    Splitter.of_runes(7),
    Splitter.of_runes(40),
    Splitter.of_runes(40, overlap=10),
    Splitter.of_tokens(9, words),
    Splitter.of_tokens(12, greedy_tokenizer),
    Splitter.of_tokens(12, greedy_tokenizer, overlap=4),
]


@pytest.mark.parametrize("splitter", SPLITTERS, ids=lambda s: s.name)
@settings(max_examples=60, deadline=None)
@given(text=ANY | ROUGH)
def test_spans_and_budget_and_nothing_lost(splitter: Splitter, text: str) -> None:
    chunks = splitter.split(text)
    covered: set[int] = set()
    previous = (-1, -1)
    for ordinal, chunk in enumerate(chunks):
        assert chunk.ordinal == ordinal
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip() != ""
        assert splitter.measure([chunk.text])[0] <= splitter.budget or len(chunk.text) == 1
        assert (chunk.start, chunk.end) > previous
        assert splitter.overlap or chunk.start >= previous[1]
        previous = (chunk.start, chunk.end)
        covered.update(range(chunk.start, chunk.end))
    assert all(text[i].isspace() for i in set(range(len(text))) - covered)


@settings(max_examples=60, deadline=None)
@given(ROUGH)
def test_characters_stay_whole_where_they_fit(text: str) -> None:
    for chunk in Splitter.of_runes(24).split(text):  # no cluster of ROUGH is longer
        for edge in (chunk.start, chunk.end):
            at_space = (edge < len(text) and text[edge].isspace()) or (edge > 0 and text[edge - 1].isspace())
            assert is_boundary(text, edge) or at_space


def paragraph(seed: random.Random, count: int) -> str:
    vocabulary = ["".join(seed.choices("abcdefghijklmnop", k=seed.randint(2, 9))) for _ in range(count)]
    return " ".join(vocabulary).capitalize() + "."


def new_texts(before: list[Chunk], after: list[Chunk]) -> int:
    return (Counter(c.text for c in after) - Counter(c.text for c in before)).total()


@pytest.mark.parametrize("separator", ["\n\n", "\n"])
@pytest.mark.parametrize("count", [40, 100])
@pytest.mark.parametrize(
    "splitter", [Splitter.of_tokens(256, words), Splitter.of_runes(1000)], ids=lambda s: s.name
)
def test_one_of_fifty(splitter: Splitter, count: int, separator: str) -> None:
    seed = random.Random(count)
    paragraphs = [paragraph(seed, count) for _ in range(50)]
    before = splitter.split(separator.join(paragraphs))
    for at in range(50):
        edited = [*paragraphs[:at], paragraph(seed, count), *paragraphs[at + 1 :]]
        after = splitter.split(separator.join(edited))
        assert (new_texts(before, after), new_texts(after, before)) == (1, 1)
    on_top = splitter.split(separator.join([paragraph(seed, count), *paragraphs]))
    assert (new_texts(before, on_top), new_texts(on_top, before)) == (1, 0)


@pytest.mark.parametrize(
    "splitter", [Splitter.of_tokens(64, words), Splitter.of_runes(300)], ids=lambda s: s.name
)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 40), min_size=20, max_size=60),
    at=st.integers(0, 59),
    size=st.integers(1, 40),
    kind=st.sampled_from(["change", "insert", "remove"]),
    separator=st.sampled_from(["\n\n", "\n"]),
)
def test_edit_is_local(
    splitter: Splitter, seed: int, sizes: list[int], at: int, size: int, kind: str, separator: str
) -> None:
    source = random.Random(seed)
    paragraphs = [paragraph(source, n) for n in sizes]
    at %= len(paragraphs)
    edited = list(paragraphs)
    edited[at : at + (kind != "insert")] = [] if kind == "remove" else [paragraph(source, size)]
    before, after = (splitter.split(separator.join(p)) for p in (paragraphs, edited))
    # Nothing beyond two budgets from the edit may differ: the bound that the decision record promises, and then some.
    assert new_texts(before, after) <= 10
    prefix = sum(map(len, paragraphs[:at])) + len(separator) * at
    reach = 2 * max(len(c.text) for c in before + after) + max(map(len, paragraphs + edited))
    kept = {c.text for c in after}
    assert all(c.text in kept for c in before if c.end < prefix - reach or c.start > prefix + reach)


def test_short_lines_share_chunks() -> None:
    seed = random.Random(7)
    text = "\n".join("".join(seed.choices("abcdefgh", k=10)) for _ in range(200))
    assert len(Splitter.of_runes(1000).split(text)) <= 8
    assert len(Splitter.of_runes(1000).split("same line.\n" * 200)) <= 4


def test_a_heading_goes_with_its_paragraph() -> None:
    seed = random.Random(3)
    first, second = paragraph(seed, 100), paragraph(seed, 100)
    chunks = Splitter.of_runes(900).split(f"One\n\n{first}\n\nTwo\n\n{second}\n\nThe end")
    assert [c.text for c in chunks] == [f"One\n\n{first}", f"Two\n\n{second}\n\nThe end"]


def test_chinese_is_cut_after_sentences() -> None:
    text = "清华大学在北京。" * 3 + "自然语言处理！" * 3
    assert all(c.text[-1] in "。！" for c in Splitter.of_runes(20).split(text))


def test_a_text_that_fits_is_one_chunk_and_nothing_is_none() -> None:
    assert Splitter.of_runes(100).split(" a\n\nb \n") == [Chunk(0, 1, 5, "a\n\nb")]
    assert Splitter.of_runes(100).split(" \n\t\u3000") == []


def test_many_texts_are_measured_in_one_call() -> None:
    calls: list[int] = []

    def counted(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return words(texts)

    split = Splitter.of_tokens(50, counted).split_many(["one two", "", "three"])
    assert [[c.text for c in chunks] for chunks in split] == [["one two"], [], ["three"]]
    assert calls == [2]


def test_overlap_repeats_only_within_a_paragraph() -> None:
    long = " ".join(f"Sentence number {i} stands here." for i in range(10))
    chunks = Splitter.of_runes(120, overlap=40).split(f"{long}\n\n{long.replace('number', 'digit')}")
    starts = [a.end > b.start for a, b in pairwise(chunks)]
    assert any(starts)
    assert next(c for c in chunks if "digit" in c.text).start >= len(long)


def test_names_and_refusals() -> None:
    assert Splitter.of_tokens(256, words).name == "chunked-256t-v1"
    assert Splitter.of_runes(1000).name == "chunked-1000c-v1"
    assert Splitter.of_runes(1000, overlap=9).name != "chunked-1000c-v1"
    for budget, overlap in ((0, 0), (5, 5), (5, -1)):
        with pytest.raises(ValueError, match="overlap"):
            Splitter.of_runes(budget, overlap)
