"""Keys of a wave as array parameters, with their places: `unnest(…) with ordinality as k(key_1, …, place)`.

psycopg adapts an array element by element; of numbers and uuids a literal is put together 8 times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from instep.engine.declaration import Columns, Key, KeyColumn, array_type, raw

_LITERAL = (
    "smallint",
    "integer",
    "bigint",
    "uuid",
)  # nothing in their text needs quoting in an array literal


def placed(columns: Columns) -> sql.Composed:
    """The keys with `place`, which counts from 1."""
    arrays = ", ".join(
        f"%({name})s::{array_type(column.type)}"
        for name, column in zip(columns.names, columns.key, strict=True)
    )
    return sql.SQL("unnest({}) with ordinality as k({}, place)").format(
        raw(arrays), raw(", ".join(columns.names))
    )


def key_arrays(columns: Columns, keys: Sequence[Key]) -> dict[str, Any]:
    """The parameters of `placed`, and of `Columns.unnest`."""
    return {
        name: _array(column, [key[at] for key in keys])
        for at, (name, column) in enumerate(zip(columns.names, columns.key, strict=True))
    }


def _array(column: KeyColumn, values: list[Any]) -> Any:
    return "{" + ",".join(map(str, values)) + "}" if column.type in _LITERAL else values
