"""The hand-written COPY rows are what the general packer makes, and short texts are split as the splitter would."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.chunks.binary_rows import chunk_rows, key_writer, layout_rows, vector_fields
from instep.chunks.splitting import splitter_of, tokens_of, whole_limit
from instep.chunks.vector_type import choose_type, fits_page
from instep.database.copying import pack_rows
from instep.engine.declaration import KeyColumn
from instep.errors import Refused
from instep.text.split import Chunk, Splitter

KEYS = [(-1, "é", uuid.UUID(int=5)), (2**62, "", uuid.UUID(int=2**127))]
COLUMNS = (KeyColumn("a", "bigint"), KeyColumn("b", "text"), KeyColumn("c", "uuid"))


@pytest.mark.parametrize("type", ["vector", "halfvec"])
def test_chunk_rows_are_those_of_the_general_packer(type):
    vectors = np.random.default_rng(1).standard_normal((2, 5)).astype(np.float32)
    hashes, texts = [b"a" * 32, b"b" * 32], ["one é", ""]
    write = key_writer(COLUMNS)
    rows = [(write(k), h, t) for k, h, t in zip(KEYS, hashes, texts, strict=True)]
    expected = pack_rows(
        ["bigint", "text", "uuid", "bytea", "text", type],
        [(*k, h, t, v) for k, h, t, v in zip(KEYS, hashes, texts, vectors, strict=True)],
    )
    assert chunk_rows(3, rows, vector_fields(vectors, type)) == expected


@pytest.mark.parametrize("count", [1, 2, 5])
def test_layout_rows_are_those_of_the_general_packer(count):
    hashes = tuple(bytes([i]) * 32 for i in range(count))
    numbers = tuple(range(count))
    write = key_writer(COLUMNS)
    expected = pack_rows(
        ["bigint", "text", "uuid", "bytea[]", "integer[]", "integer[]"],
        [(*k, hashes, numbers, numbers) for k in KEYS],
    )
    assert layout_rows(3, [(write(k), hashes, numbers, numbers) for k in KEYS]) == expected


words = st.lists(
    st.sampled_from(["a", "word", "한국어", "\n\n", "\n", " ", "é", ".", "longer-word"]), max_size=30
)


@given(words.map(" ".join).map(str.strip), st.booleans())
def test_short_texts_are_one_chunk(text, tokens):
    splitter = (
        Splitter.of_tokens(400, lambda many: [4 * len(t) for t in many]) if tokens else Splitter.of_runes(100)
    )
    if 0 < len(text) <= whole_limit(splitter):
        assert splitter.split(text) == [Chunk(0, 0, len(text), text)]


@pytest.mark.parametrize(
    ("code", "name", "budget", "overlap"),
    [("1000c", "chunked-1000c-v1", 1000, 0), ("1000c/100", "chunked-1000c-overlap-100-v1", 1000, 100)],
)
def test_splitter_codes(code, name, budget, overlap):
    splitter = splitter_of(code, None)
    assert (splitter.name, splitter.budget, splitter.overlap) == (name, budget, overlap)


def test_what_the_model_adds_is_kept_free():
    """The name says what is sent; the budget what is left for the text."""
    count = lambda text: 2 + len(text.split())  # noqa: E731
    splitter = splitter_of("256t", tokens_of(count), count("passage :"))
    assert (splitter.name, splitter.budget) == ("chunked-256t-v1", 252)
    assert splitter.measure(["a b c", ""]) == [3, 0]


@pytest.mark.parametrize("code", ["", "256", "256x", "0c", "100c/100", "-5c", "1000c "])
def test_splitter_codes_that_are_refused(code):
    with pytest.raises(Refused, match="splitter"):
        splitter_of(code, None)


def test_tokens_without_a_tokenizer_are_refused():
    with pytest.raises(Refused, match="tokenizer") as raised:
        splitter_of("256t", None)
    assert "--splitter 1000c" in raised.value.hint


def test_types_by_dimensions():
    assert [choose_type(d) for d in (1, 2000, 2001, 4000)] == ["vector", "vector", "halfvec", "halfvec"]
    assert choose_type(384, halfvec=True) == "halfvec"
    for bad in (0, 4001):
        with pytest.raises(Refused, match="cannot be indexed"):
            choose_type(bad)
    assert fits_page(1536, "vector")
    assert not fits_page(2000, "vector")
    assert fits_page(2000, "halfvec")
