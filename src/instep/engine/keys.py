"""Keys as people write them: plain for one column, a JSON array for several."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from instep.engine.declaration import Key, KeyColumn, Source
from instep.errors import Refused

_BITS = {"smallint": 16, "integer": 32, "bigint": 64}


def parse_key(source: Source, text: str) -> Key:
    """The key of `text`. Raises Refused, saying what it takes, for another number of values or another type."""
    if len(source.key) == 1:
        return (_value(source, source.key[0], text),)
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _refused(source, f"{text!r} is no JSON array") from error
    if not isinstance(values, list) or len(values) != len(source.key):
        raise _refused(source, f"{text!r} has not {len(source.key)} values")
    return tuple([_value(source, column, value) for column, value in zip(source.key, values, strict=True)])


def format_key(key: Key) -> str:
    """What `parse_key` takes: plain for one column, a JSON array for several (uuids as text)."""
    return str(key[0]) if len(key) == 1 else orjson.dumps(list(key)).decode()


def _value(source: Source, column: KeyColumn, given: Any) -> Any:
    base = column.type.split("(")[0]
    if base in _BITS:
        number = _integer(given)
        limit = 1 << (_BITS[base] - 1)
        if number is None or not -limit <= number < limit:
            raise _refused(source, f"{given!r} is no {base}")
        return number
    if not isinstance(given, str):
        raise _refused(source, f"{given!r} is no {base}")
    if base == "uuid":
        try:
            return UUID(given)
        except ValueError as error:
            raise _refused(source, f"{given!r} is no uuid") from error
    if "\0" in given:
        raise _refused(source, f"{given!r} holds a NUL character")
    return given


def _integer(given: Any) -> int | None:
    if isinstance(given, bool) or not isinstance(given, int | str):
        return None
    try:
        return int(given)
    except ValueError:
        return None


def _refused(source: Source, what: str) -> Refused:
    columns = ", ".join(f"{column.name} ({column.type})" for column in source.key)
    takes = f"the value of {columns}" if len(source.key) == 1 else f"a JSON array of {columns}"
    example = [_example(column) for column in source.key]
    return Refused(
        f"{what}: the key of {source.name} is {takes}.",
        hint=f"For example: {example[0]}"
        if len(example) == 1
        else f"For example: '{orjson.dumps(example).decode()}'",
    )


def _example(column: KeyColumn) -> Any:
    base = column.type.split("(")[0]
    if base in _BITS:
        return 4711
    return "8c1f2a30-5b1d-4f6e-9a51-0d7c3e9b2a44" if base == "uuid" else "abc"
