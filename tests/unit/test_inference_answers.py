"""Parsing and checking of answers: no vector that is not sound gets out, and the fast way equals the plain one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.errors import Permanent
from instep.inference.answers import ArrayReader, WrongShapeError, settle
from instep.inference.refusals import Refusal, clean, cut_length, server_words, too_large

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.none() | st.integers(-9, 9)


@given(rows=st.lists(st.lists(numbers, max_size=4), max_size=5), wrapped=st.booleans())
def test_only_sound_vectors_get_out(rows, wrapped):
    body = json.dumps({"embeddings": rows} if wrapped else rows).encode()
    vectors, failures = settle(ArrayReader().read(body), len(rows), None)
    assert vectors.shape[0] == len(rows)
    assert np.isfinite(vectors).all()
    for index, row in enumerate(rows):
        if index in failures:
            assert not vectors[index].any()
        else:
            np.testing.assert_array_equal(vectors[index], np.array(row, dtype=np.float64).astype(np.float32))
            assert vectors[index].any()


@given(body=st.binary(max_size=60))
def test_any_bytes_are_rows_or_no_shape(body):
    try:
        rows = ArrayReader().read(body)
        settle(rows, len(rows), None)
    except (WrongShapeError, Permanent):
        pass


def test_rows_that_only_add_up_are_noticed():
    vectors, failures = settle(ArrayReader().read(b"[[1,2],[1],[1,2,3]]"), 3, 2)
    assert set(failures) == {1, 2}
    assert vectors.tolist() == [[1, 2], [0, 0], [0, 0]]


def test_tiny_and_huge_vectors_are_sound():
    vectors, failures = settle(np.array([[1e-30, 0.0], [3e38, 1.0]]), 2, 2)
    assert not failures
    assert vectors[0, 0] > 0


@pytest.mark.parametrize(
    ("status", "words", "expected"),
    [
        (422, "batch size 33 > maximum allowed batch size 32", (32, None, None)),
        (413, "batch size 33 > maximum allowed batch size 32", (32, None, None)),
        (413, "", (None, None, None)),
        (413, "`inputs` must have less than 512 tokens. Given: 600", (None, 512, 600)),
        (
            400,
            "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
            (None, 8192, 9000),
        ),
        (400, "Requested 600000 tokens, max 300000 tokens per request", (None, 300000, 600000)),
        (400, "the input length exceeds the context length", (None, None, None)),
    ],
)
def test_refusals_about_size(status, words, expected):
    size = too_large(Refusal(status, words))
    assert size is not None
    assert (size.batch, size.tokens, size.given) == expected


@pytest.mark.parametrize(
    ("status", "words"), [(400, "text must not be empty"), (422, "invalid type"), (409, "too long")]
)
def test_refusals_about_something_else(status, words):
    assert too_large(Refusal(status, words)) is None


@given(
    length=st.integers(2, 10**6),
    tokens=st.none() | st.integers(1, 10**4),
    given_=st.none() | st.integers(1, 10**6),
    accepted=st.none() | st.integers(1, 10**4),
)
def test_a_cut_always_shortens(length, tokens, given_, accepted):
    from instep.inference.refusals import TooLarge

    assert 0 <= cut_length(length, TooLarge(None, tokens, given_), accepted) < length


def test_server_words():
    assert server_words(b'{"error": {"message": "no \\u0000 such\\n key"}}') == "no such key"
    assert server_words(b'{"detail": [{"msg": "field required"}]}') == "field required"
    assert server_words(b"plain") == "plain"
    assert server_words(b'{"error": "key sk-1 is wrong"}', ["sk-1"]) == "key *** is wrong"
    assert len(clean("x" * 5000)) == 200
