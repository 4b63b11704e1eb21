"""The columns that a filter, a facet or a result may name, and how each kind is encoded for an index.

A kind is what a filter may do with a column: `integer` and `number` are ordered, `text` is only compared for equality
and by pattern (order depends on a collation that an index does not have), moments are microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from psycopg import sql

from instep.database.statements import Statements, compose
from instep.engine.declaration import Source, quoted
from instep.engine.ports import Conn
from instep.errors import Refused

Kind = Literal["text", "integer", "number", "boolean", "date", "timestamp", "timestamptz", "uuid", "texts"]

_KINDS: dict[str, Kind] = {
    "text": "text",
    "character varying": "text",
    "character": "text",
    '"char"': "text",
    "name": "text",
    "citext": "text",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "real": "number",
    "double precision": "number",
    "numeric": "number",
    "boolean": "boolean",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "uuid": "uuid",
    "text[]": "texts",
    "character varying[]": "texts",
}
MOMENTS: frozenset[Kind] = frozenset({"date", "timestamp", "timestamptz"})
ORDERED: frozenset[Kind] = frozenset({"integer", "number", *MOMENTS})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SQL = "instep.search"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the source: `type` as PostgreSQL prints it, without a length (`numeric`, `text[]`)."""

    name: str
    kind: Kind
    type: str

    def reference(self, alias: str) -> sql.Composed:
        """`a."price"`; text of another type is cast, so that index and SQL compare the same characters."""
        plain = quoted(alias, self.name)
        if self.kind == "text" and self.type not in ("text", "character varying"):
            return sql.SQL("{}::text").format(plain)
        return sql.Composed([plain])

    def encoded(self, alias: str) -> sql.Composed:
        """The column as an index keeps it: text, bigint, float8, boolean, text[]; moments as microseconds."""
        template = "encode_moment" if self.kind in MOMENTS else f"encode_{self.kind}"
        return compose(_SQL, "columns.sql", template, column=self.reference(alias))

    def decode(self, value: Any) -> str | int | float | bool:
        """What an index gave back, as it is shown in a facet: moments in ISO 8601."""
        if self.kind in MOMENTS:
            return _moment(self.kind, int(value))
        if self.kind == "boolean":
            return bool(value)
        if self.kind == "integer":
            return int(value)
        return float(value) if self.kind == "number" else str(value)


def _moment(kind: Kind, microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:  # PostgreSQL's infinity, or a year that Python does not have
        return "infinity" if microseconds > 0 else "-infinity"
    if kind == "date":
        return moment.date().isoformat()
    return (moment if kind == "timestamptz" else moment.replace(tzinfo=None)).isoformat()


def microseconds(value: date | datetime) -> int:
    """A date or a moment (naive: UTC) as an index keeps it."""
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - _EPOCH) // timedelta(microseconds=1)


def kind_of(type: str) -> Kind | None:
    """The kind of a type as format_type prints it (a modifier is ignored), or None where it cannot be filtered."""
    head, _, tail = type.partition("(")
    return _KINDS.get(head + tail.partition(")")[2])


async def read_columns(conn: Conn, source: Source, names: Sequence[str]) -> tuple[Column, ...]:
    """The named columns of the source as they are now, in the order of `names`.

    Raises Refused for a column that is not there, or is of a type that no filter understands.
    """
    if not names:
        return ()
    statements = Statements(_SQL, "columns.sql")
    cursor = await conn.execute(statements["read"], {"relation": source.oid, "names": list(names)})
    types: dict[str, tuple[str, bool]] = {
        name: (type, is_enum) for name, type, is_enum in await cursor.fetchall()
    }
    columns = []
    for name in names:
        if name not in types:
            raise Refused(
                f"{source.schema}.{source.table} has no column {name!r}, which is declared as a filter"
            )
        type, is_enum = types[name]
        kind = "text" if is_enum else kind_of(type)
        if kind is None:
            raise Refused(
                f"column {name!r} is of type {type}, which a filter cannot use",
                hint="filters take text, numbers, booleans, dates, timestamps, uuid and arrays of text",
            )
        head, _, tail = type.partition("(")
        columns.append(Column(name, kind, head + tail.partition(")")[2]))
    return tuple(columns)
