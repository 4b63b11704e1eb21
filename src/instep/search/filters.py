"""Filters: small conditions on declared columns, `price < 20 and section in ('a', 'b')`.

Parsed by sqlglot; only the nodes listed here and the declared columns pass, and values become parameters. The result
is a tree without negation (it is pushed into the leaves while parsing), in which every leaf is true, false or, for a
NULL, unknown as in SQL: so an engine that only knows "has" and "has not" translates each leaf by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from psycopg import sql

from instep.search.columns import Column

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
Value = str | int | Decimal | bool | UUID | date | datetime


@dataclass(frozen=True, slots=True)
class Comparison:
    column: Column
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Member:
    """`section in ('a', 'b')`, or not in."""

    column: Column
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """`price is null`, or is not null."""

    column: Column
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """`name like 'lib%'`; `ilike` where `insensitive`."""

    column: Column
    pattern: str
    insensitive: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Has:
    """`'x' = any(tags)`."""

    column: Column
    value: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Filter, ...]


Leaf = Comparison | Member | Null | Like | Has
Filter = Leaf | And | Or


def to_sql(filter: Filter, alias: str = "a", prefix: str = "filter_") -> tuple[sql.Composed, dict[str, Any]]:
    """A condition over the source under `alias`, and its parameters, named `<prefix>1`, `<prefix>2`, …"""
    writer = _Writer(alias, prefix)
    return writer.write(filter), writer.parameters


_PARAMETER_TYPES: Mapping[str, str] = {
    "text": "text",
    "texts": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "uuid": "uuid",
}


@dataclass(slots=True)
class _Writer:
    alias: str
    prefix: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def write(self, node: Filter) -> sql.Composed:
        match node:
            case And(parts):
                return self._joined(" and ", parts)
            case Or(parts):
                return self._joined(" or ", parts)
            case Comparison(column, operator, value):
                return sql.SQL("{} {} {}").format(
                    column.reference(self.alias), sql.SQL(operator), self._parameter(column, value)
                )
            case Member(column, values, negated):
                listed = sql.SQL(", ").join(self._parameter(column, value) for value in values)
                return sql.SQL("{} {} ({})").format(
                    column.reference(self.alias), sql.SQL("not in" if negated else "in"), listed
                )
            case Null(column, negated):
                return sql.SQL("{} {}").format(
                    column.reference(self.alias), sql.SQL("is not null" if negated else "is null")
                )
            case Like(column, pattern, insensitive, negated):
                operator_text = ("not " if negated else "") + ("ilike" if insensitive else "like")
                return sql.SQL("{} {} {}").format(
                    column.reference(self.alias), sql.SQL(operator_text), self._parameter(column, pattern)
                )
            case Has(column, value, negated):
                return sql.SQL("{}({} = any({}::text[]))").format(
                    sql.SQL("not " if negated else ""),
                    self._parameter(column, value),
                    column.reference(self.alias),
                )

    def _joined(self, word: str, parts: Sequence[Filter]) -> sql.Composed:
        return sql.SQL("({})").format(sql.SQL(word).join(self.write(part) for part in parts))

    def _parameter(self, column: Column, value: Value) -> sql.Composed:
        name = f"{self.prefix}{len(self.parameters) + 1}"
        self.parameters[name] = value
        return sql.SQL("{}::{}").format(sql.Placeholder(name), sql.SQL(_type(column, value)))


def _type(column: Column, value: Value) -> str:
    """A whole number stays a bigint beside an integer column, so that an index of the user's can serve it."""
    if column.kind == "integer":
        return "bigint" if isinstance(value, int) and -(2**63) <= value < 2**63 else "numeric"
    if column.kind == "number":
        return "numeric" if column.type == "numeric" else "float8"
    return _PARAMETER_TYPES[column.kind]
