"""Rows of the chunk and layout tables in PostgreSQL's binary COPY format.

Written by hand over numpy: psycopg's row writer converts value by value and takes 5 times as long for vectors
(figures: docs/decisions/0009-chunk-writes.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from instep.chunks.entity_chunks import Vectors
from instep.engine.declaration import Key, KeyColumn
from instep.errors import Refused

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = b"\xff\xff"

_LENGTH = struct.Struct(">i")
_BYTEA, _INT4 = 17, 23
_HASH = _LENGTH.pack(32)


def _text(value: Any) -> bytes:
    encoded = str(value).encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _uuid(value: Any) -> bytes:
    return b"\0\0\0\x10" + bytes(value.bytes)


def _integer(length: int, code: str) -> Callable[[Any], bytes]:
    pack = struct.Struct(f">i{code}").pack
    return lambda value: pack(length, value)


_FIELDS: dict[str, Callable[[Any], bytes]] = {
    "smallint": _integer(2, "h"),
    "integer": _integer(4, "i"),
    "bigint": _integer(8, "q"),
    "uuid": _uuid,
    "text": _text,
    "character varying": _text,
    "character": _text,
}
KEY_TYPES = tuple(_FIELDS)


def key_writer(key: Sequence[KeyColumn]) -> Callable[[Key], bytes]:
    """A function that gives a key's fields, each with its length before it. Refuses a type of no known form."""
    writers = []
    for column in key:
        writer = _FIELDS.get(column.type.split("(")[0])
        if writer is None:
            raise Refused(
                f"key column {column.name} is of type {column.type}: keys are {', '.join(KEY_TYPES)}"
            )
        writers.append(writer)
    if len(writers) == 1:
        only = writers[0]
        return lambda value: only(value[0])
    return lambda value: b"".join(writer(part) for writer, part in zip(writers, value, strict=True))


def vector_fields(vectors: Vectors, type: str) -> list[memoryview]:
    """Each row of `vectors` (n, d) as a field of pgvector's type `vector` or `halfvec`."""
    import numpy as np

    count, dimensions = vectors.shape
    number = np.dtype(">f2" if type == "halfvec" else ">f4")
    width = number.itemsize * dimensions
    fields = np.empty(count, dtype=[("head", "V8"), ("numbers", number, (dimensions,))])
    fields["head"] = np.void(struct.pack(">ihh", 4 + width, dimensions, 0))
    fields["numbers"] = vectors
    blob, size = fields.view(np.uint8).data, 8 + width
    return [blob[at : at + size] for at in range(0, count * size, size)]


def chunk_rows(
    key_columns: int, rows: Sequence[tuple[bytes, bytes, str]], vectors: Sequence[memoryview]
) -> bytes:
    """COPY data for (key, text_hash, text, vector); `rows` give the key's fields, the hash and the text."""
    opening = struct.pack(">h", key_columns + 3)
    parts: list[bytes | memoryview] = [HEADER]
    pack = _LENGTH.pack
    for (key, digest, text), vector in zip(rows, vectors, strict=True):
        encoded = text.encode()
        parts += (opening, key, _HASH, digest, pack(len(encoded)), encoded, vector)
    parts.append(TRAILER)
    return b"".join(parts)


def layout_rows(
    key_columns: int, rows: Sequence[tuple[bytes, Sequence[bytes], Sequence[int], Sequence[int]]]
) -> bytes:
    """COPY data for (key, text_hashes, starts, ends); none of the three is empty."""
    opening = struct.pack(">h", key_columns + 3)
    pack = _LENGTH.pack
    parts = [HEADER]
    for key, hashes, starts, ends in rows:
        if len(hashes) == 1:  # short rows: most, and six times as fast
            parts += (
                opening,
                key,
                _ONE_HASH,
                hashes[0],
                _ONE_INTEGER,
                pack(starts[0]),
                _ONE_INTEGER,
                pack(ends[0]),
            )
        else:
            parts += (opening, key, _hashes(hashes), _integers(starts), _integers(ends))
    parts.append(TRAILER)
    return b"".join(parts)


_ONE_HASH = struct.pack(">iiiiiii", 56, 1, 0, _BYTEA, 1, 1, 32)
_ONE_INTEGER = struct.pack(">iiiiiii", 28, 1, 0, _INT4, 1, 1, 4)


def _hashes(values: Sequence[bytes]) -> bytes:
    count = len(values)
    head = struct.pack(">iiiiii", 20 + 36 * count, 1, 0, _BYTEA, count, 1)
    return head + b"".join([_HASH + value for value in values])


def _integers(values: Sequence[int]) -> bytes:
    count = len(values)
    flat = [number for value in values for number in (4, value)]
    return _integers_packer(count)(20 + 8 * count, 1, 0, _INT4, count, 1, *flat)


@cache
def _integers_packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f">{6 + 2 * count}i").pack
