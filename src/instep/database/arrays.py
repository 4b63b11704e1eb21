"""Array parameters of fixed-width elements in PostgreSQL's binary form, packed by numpy.

psycopg adapts a list element by element: for the 1,000 keys of a wave that takes 8 times as long as their text, and the
text twice as long as this. The type is left to the statement, which names it: `%(key_1)s::bigint[]`.
Guarded by postgres/test_database_arrays.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_OIDS = {"smallint": 21, "integer": 23, "bigint": 20, "uuid": 2950, "bytea": 17, "tid": 27}
_INTEGERS = {"smallint": "i2", "integer": "i4", "bigint": "i8"}
_EMPTY = struct.Struct(">iiI")  # dimensions, nulls, type of the elements
_HEADER = struct.Struct(">iiIii")  # the same, length, lower bound


@dataclass(frozen=True, slots=True)
class PackedArray:
    """Integers of a key type, UUIDs, or bytes (bytea, tid). OverflowError, when it is sent, for what the type cannot hold."""

    type: str
    values: Sequence[Any]


class _PackedArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return _packed(obj.type, obj.values)


psycopg.adapters.register_dumper(PackedArray, _PackedArrayDumper)


def packs(type: str) -> bool:
    """Whether there are packed arrays of this key type."""
    return type in _INTEGERS or type == "uuid"


def _packed(type: str, values: Sequence[Any]) -> bytes:
    import numpy as np

    if not values:
        return _EMPTY.pack(0, 0, _OIDS[type])
    if type in _INTEGERS:
        elements = np.fromiter(values, _INTEGERS[type], len(values)).astype(f">{_INTEGERS[type]}")
    else:
        raw = [value.bytes for value in values] if type == "uuid" else values
        width = len(raw[0])
        if any(len(value) != width for value in raw):
            return _unequal(type, raw)
        elements = np.frombuffer(b"".join(raw), f"V{width}")
    rows = np.empty(len(values), [("length", ">i4"), ("element", elements.dtype)])
    rows["length"] = elements.dtype.itemsize
    rows["element"] = elements
    return _HEADER.pack(1, 0, _OIDS[type], len(values), 1) + rows.tobytes()


def _unequal(type: str, values: Sequence[bytes]) -> bytes:
    rows = [struct.pack(">i", len(value)) + value for value in values]
    return _HEADER.pack(1, 0, _OIDS[type], len(values), 1) + b"".join(rows)
