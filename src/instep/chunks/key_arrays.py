"""Keys of a wave as array parameters, with their places: `unnest(…) with ordinality as k(key_1, …, place)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from instep.engine.declaration import Columns, Key, array_type, raw


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
    return columns.arrays(keys)
