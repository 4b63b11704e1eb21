"""From the bytes of an answer to checked vectors.

Invariant: no vector leaves here that is not finite, is all zeros, or has another dimension than the target's
(unit/test_inference_answers.py). The usual answer is parsed and checked without a Python loop over numbers.
"""

from __future__ import annotations

import binascii
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import simdjson

from instep.errors import Configuration, Permanent

Rows = np.ndarray | list[Any]
"""What a server gave for each text: a rectangular array, or a list of rows where they are odd."""


class WrongShapeError(Exception):
    """The answer is not one of the known shapes; the caller says which server and quotes it."""


class ArrayReader:
    """Reads `[[…], …]`, bare or under a key of an object. Not for use from two threads."""

    def __init__(self, key: str = "embeddings") -> None:
        self._key = key
        self._parser = simdjson.Parser()

    def read(self, body: bytes) -> Rows:
        """float64 (n, d) in the usual case; rows of odd lengths, NaN and null come back as a list."""
        try:
            return self._fast(body)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
            # NaN and Infinity are no JSON, null is how Rust writes NaN: the slow reader takes them
            self._parser = simdjson.Parser()
            return self._slow(body)

    def _fast(self, body: bytes) -> Rows:
        document: Any = self._parser.parse(body)
        rows: Any = document[self._key] if isinstance(document, simdjson.Object) else document
        count = len(rows)
        numbers = np.frombuffer(rows.as_buffer(of_type="d"), dtype=np.float64)
        width = numbers.size // count if count else 0
        # as_buffer flattens whatever it finds: see that it was rows of plain numbers, all of one length
        if any(len(row) != width or (width and isinstance(row[0], simdjson.Array)) for row in rows):
            raise ValueError("no rectangle")
        del document, rows  # the parser is reused only when nothing refers to its document
        return numbers.reshape(count, width)

    def _slow(self, body: bytes) -> Rows:
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise WrongShapeError from error
        rows = answer.get(self._key) if isinstance(answer, dict) else answer
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise WrongShapeError
        return rows


def indexed(items: Any, count: int) -> Rows:
    """Rows of an OpenAI answer's `data`, put into the order of their `index`; vectors in base64 or as numbers."""
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and "embedding" in item for item in items
    ):
        raise WrongShapeError
    places = [item.get("index", place) for place, item in enumerate(items)]
    if len(items) != count or sorted(places, key=str) != sorted(range(count), key=str):
        raise _wrong_count(len(items), count, " (or with a wrong index)" if len(items) == count else "")
    rows: list[Any] = [None] * count
    for place, item in zip(places, items, strict=True):
        rows[place] = item["embedding"]
    if not all(isinstance(row, str) for row in rows):
        return rows
    try:
        raw = [binascii.a2b_base64(row) for row in rows]
        widths = {len(row) for row in raw}
        if len(widths) == 1:
            return np.frombuffer(b"".join(raw), dtype="<f4").reshape(count, -1)
        return [np.frombuffer(row, dtype="<f4") for row in raw]
    except ValueError as error:
        raise WrongShapeError from error


def settle(rows: Rows, count: int, dimensions: int | None) -> tuple[np.ndarray, dict[int, Permanent]]:
    """Vectors float32 (count, d) and why some texts have none.

    Raises Permanent of kind "wrong answer" for another number of rows, Configuration where every row has another
    dimension than `dimensions`.
    """
    if len(rows) != count:
        raise _wrong_count(len(rows), count)
    failures: dict[int, Permanent] = {}
    if not isinstance(rows, np.ndarray):
        rows, failures = _rectangular(rows, dimensions)
    width = rows.shape[1]
    if dimensions is not None and width != dimensions:
        raise Configuration(
            f"the model's vectors have {width} dimensions, {dimensions} were expected",
            setting="INSTEP_EMBED_MODEL",
            hint="set INSTEP_EMBED_MODEL (and INSTEP_EMBED_URL) to the model that the target was made with",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = rows.astype(np.float32)
        squares = np.einsum("ij,ij->i", vectors, vectors)
        sound = count == 0 or bool(squares.min() > 0 and squares.max() < np.inf)  # NaN compares false
    if not sound:
        finite = np.logical_and.reduce(np.isfinite(vectors), axis=1)
        nonzero = np.logical_or.reduce(vectors != 0, axis=1)
        for index in np.flatnonzero(~(finite & nonzero)).tolist():
            if index not in failures:
                failures[index] = (
                    Permanent("the model answered a vector of zeros", kind="zero vector")
                    if finite[index]
                    else Permanent("the model answered a vector with NaN or infinity", kind="not a number")
                )
            vectors[index] = 0
    return vectors, failures


def _rectangular(rows: Sequence[Any], dimensions: int | None) -> tuple[np.ndarray, dict[int, Permanent]]:
    """One array of odd rows; those of another length than the others (or than expected) fail alone."""
    try:
        parsed = [np.asarray(row, dtype=np.float64) for row in rows]  # null becomes NaN
    except (ValueError, TypeError) as error:
        raise WrongShapeError from error
    if any(row.ndim != 1 for row in parsed):
        raise WrongShapeError
    widths = Counter(row.size for row in parsed if row.size)
    width = dimensions or 0
    if widths and width not in widths:
        width = widths.most_common(1)[0][0]
    array = np.zeros((len(parsed), width))
    failures: dict[int, Permanent] = {}
    for index, row in enumerate(parsed):
        if row.size == width and width:
            array[index] = row
        else:
            failures[index] = Permanent(
                f"the model answered a vector of {row.size} dimensions", kind="wrong dimension"
            )
    return array, failures


def _wrong_count(got: int, asked: int, more: str = "") -> Permanent:
    return Permanent(f"the model answered {got} vectors for {asked} texts{more}", kind="wrong answer")
