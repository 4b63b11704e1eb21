"""From the text of a filter to its tree: what passes, and what is said about what does not.

sqlglot (PostgreSQL's dialect) reads the text; each node and each of its parts must be known here, so whatever the
parser understands beyond that (calls, sub-selects, casts of columns, operators) is refused by its own words.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, cast
from uuid import UUID

from instep.errors import Refused
from instep.search.columns import MOMENTS, ORDERED, Column
from instep.search.filters import And, Comparison, Filter, Has, Like, Member, Null, Operator, Or, Value

if TYPE_CHECKING:
    from sqlglot import exp

MAX_LENGTH = 4000
MAX_DEPTH = 100
_OPERATORS: Mapping[str, Operator] = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_NEGATED: Mapping[Operator, Operator] = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_FLIPPED: Mapping[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CASTS = {"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TEXT", "VARCHAR", "INT", "BIGINT", "DECIMAL", "DOUBLE", "UUID"}


def parse_filter(text: str, columns: Sequence[Column]) -> Filter:
    """The filter's tree. Raises Refused, quoting the part that is not understood or naming the columns there are."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if not text.strip():
        raise Refused("the filter is empty", hint=_columns_hint(columns))
    if len(text) > MAX_LENGTH:
        raise Refused(f"the filter has {len(text):,} characters, {MAX_LENGTH:,} are taken")
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused("the filter holds a NUL or half a character")
    try:
        tree = sqlglot.parse_one(text, dialect="postgres", into=exp.Condition)
    except (SqlglotError, RecursionError) as error:
        raise Refused(
            f"the filter {_quoted(text)} is not a condition", hint=_columns_hint(columns)
        ) from error
    return _Reader({column.name: column for column in columns}).read(cast("exp.Expression", tree), False, 0)


def _quoted(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return f"«{text if len(text) <= limit else text[: limit - 1] + '…'}»"


def _columns_hint(columns: Sequence[Column]) -> str:
    if not columns:
        return "no column of this table was declared for filters (--filters of `instep tables add`)"
    listed = ", ".join(f"{column.name} ({column.type})" for column in columns)
    return f"columns that can be filtered: {listed}"


@dataclass(slots=True)
class _Reader:
    columns: dict[str, Column]

    def read(self, node: exp.Expression, negate: bool, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Refused(f"the filter is nested more than {MAX_DEPTH} deep")
        kind = type(node).__name__
        if kind == "Paren":
            self._only(node, "this")
            return self.read(node.this, negate, depth + 1)
        if kind == "Not":
            self._only(node, "this")
            return self.read(node.this, not negate, depth + 1)
        if kind in ("And", "Or"):
            return self._junction(node, negate, depth)
        if kind in _OPERATORS:
            return self._comparison(node, _OPERATORS[kind], negate)
        readers: Mapping[str, Callable[[exp.Expression, bool], Filter]] = {
            "Column": self._flag,
            "In": self._member,
            "Between": self._between,
            "Is": self._is,
            "Like": self._like,
            "ILike": self._like,
        }
        if kind not in readers:
            raise self._refused(node)
        return readers[kind](node, negate)

    def _junction(self, node: exp.Expression, negate: bool, depth: int) -> Filter:
        self._only(node, "this", "expression")
        parts: list[exp.Expression] = []
        waiting = [node]  # a chain of a hundred ORs leans to the left: unroll it, do not recurse
        while waiting:
            part = waiting.pop()
            if type(part) is type(node):
                self._only(part, "this", "expression")
                waiting += [part.args["expression"], part.this]
            else:
                parts.append(part)
        read = tuple(self.read(part, negate, depth + 1) for part in parts)
        return And(read) if (type(node).__name__ == "And") != negate else Or(read)

    def _comparison(self, node: exp.Expression, operator: Operator, negate: bool) -> Filter:
        self._only(node, "this", "expression")
        left, right = node.this, node.args["expression"]
        if type(right).__name__ == "Any":
            return self._any(node, left, right, operator, negate)
        if type(left).__name__ != "Column":
            left, right, operator = right, left, _FLIPPED[operator]
        column = self._column(left, node)
        if column.kind == "texts":
            raise Refused(
                f"{_quoted(_sql(node))}: {column.name} is an array",
                hint=f"write 'value' = any({column.name})",
            )
        if operator not in ("=", "<>") and column.kind not in ORDERED:
            raise Refused(
                f"{_quoted(_sql(node))}: {column.name} ({column.type}) has no order that an index knows",
                hint="it can be compared by =, <>, in"
                + (", like and ilike" if column.kind == "text" else ""),
            )
        value = self._value(right, column, node)
        return Comparison(column, _NEGATED[operator] if negate else operator, value)

    def _any(
        self,
        node: exp.Expression,
        left: exp.Expression,
        right: exp.Expression,
        operator: Operator,
        negate: bool,
    ) -> Filter:
        inner = right.this
        if type(inner).__name__ == "Paren":
            inner = inner.this
        if operator != "=" or type(inner).__name__ != "Column":
            raise self._refused(node)
        column = self._column(inner, node)
        if column.kind != "texts":
            raise Refused(f"{_quoted(_sql(node))}: {column.name} ({column.type}) is not an array of text")
        return Has(column, cast(str, self._value(left, column, node)), negate)

    def _flag(self, node: exp.Expression, negate: bool) -> Filter:
        column = self._column(node, node)
        if column.kind != "boolean":
            raise Refused(
                f"{_quoted(_sql(node))} is {column.type}, not a condition: compare it with something"
            )
        return Comparison(column, "=", not negate)

    def _member(self, node: exp.Expression, negate: bool) -> Filter:
        self._only(node, "this", "expressions")
        column = self._column(node.this, node)
        if column.kind == "texts":
            raise self._refused(node)
        values = tuple(self._value(value, column, node) for value in node.args["expressions"])
        if not values:
            raise self._refused(node)
        return Member(column, values, negate)

    def _between(self, node: exp.Expression, negate: bool) -> Filter:
        self._only(node, "this", "low", "high")
        column = self._column(node.this, node)
        if column.kind not in ORDERED:
            raise Refused(
                f"{_quoted(_sql(node))}: {column.name} ({column.type}) has no order that an index knows"
            )
        low, high = (self._value(node.args[end], column, node) for end in ("low", "high"))
        if negate:
            return Or((Comparison(column, "<", low), Comparison(column, ">", high)))
        return And((Comparison(column, ">=", low), Comparison(column, "<=", high)))

    def _is(self, node: exp.Expression, negate: bool) -> Filter:
        self._only(node, "this", "expression", "negate")
        column, what = self._column(node.this, node), node.args["expression"]
        if node.args.get("negate"):
            negate = not negate
        if type(what).__name__ == "Null":
            return Null(column, negate)
        if type(what).__name__ != "Boolean" or column.kind != "boolean":
            raise self._refused(node)
        if negate:  # "is not true" holds for false and for NULL
            return Or((Comparison(column, "=", not what.this), Null(column)))
        return Comparison(column, "=", bool(what.this))

    def _like(self, node: exp.Expression, negate: bool) -> Filter:
        self._only(node, "this", "expression", "negate")
        column = self._column(node.this, node)
        if column.kind != "text":
            raise Refused(f"{_quoted(_sql(node))}: {column.name} ({column.type}) is not text")
        pattern = cast(str, self._value(node.args["expression"], column, node))
        if len(pattern) > 200 or (len(pattern) - len(pattern.rstrip("\\"))) % 2:
            raise Refused(
                f"the pattern {_quoted(pattern)} is too long (200 characters) or ends with a lone \\"
            )
        if node.args.get("negate"):
            negate = not negate
        return Like(column, pattern, type(node).__name__ == "ILike", negate)

    def _column(self, node: exp.Expression, where: exp.Expression) -> Column:
        if type(node).__name__ != "Column":
            raise self._refused(where)
        self._only(node, "this")
        if type(node.this).__name__ != "Identifier":
            raise self._refused(where)
        name = str(node.this.this)
        found = self.columns.get(name) or (None if node.this.quoted else self.columns.get(name.lower()))
        if found:
            return found
        nearest = difflib.get_close_matches(name, self.columns, 1)
        hint = _columns_hint(list(self.columns.values()))
        if nearest:
            hint = f"did you mean {nearest[0]}? {hint}"
        if node.this.quoted:
            hint = f"text stands in single quotes: '{name}'; {hint}"
        raise Refused(f"{_quoted(_sql(where))}: no column {name!r} can be filtered", hint=hint)

    def _value(self, node: exp.Expression, column: Column, where: exp.Expression) -> Value:
        inner, sign = node, ""
        if type(inner).__name__ == "Cast":
            self._only(inner, "this", "to")
            if inner.args["to"].this.name not in _CASTS or inner.args["to"].expressions:
                raise self._refused(where)
            inner = inner.this
        if type(inner).__name__ == "Neg":
            self._only(inner, "this")
            inner, sign = inner.this, "-"
        match type(inner).__name__:
            case "Null":
                raise Refused(f"{_quoted(_sql(where))} is never true", hint=f"write {column.name} is null")
            case "Boolean" if not sign and column.kind == "boolean":
                return bool(inner.this)
            case "Literal" if not (sign and inner.is_string):
                try:
                    return _convert(sign + str(inner.this), inner.is_string, column)
                except (ValueError, InvalidOperation, OverflowError) as error:
                    raise Refused(
                        f"{_quoted(_sql(node))} is not a value for {column.name} ({column.type})",
                        hint=_example(column),
                    ) from error
        if type(inner).__name__ == "Column":
            name = _sql(inner)
            raise Refused(
                f"{_quoted(_sql(where))}: {column.name} can be compared with a value only, not with {name}",
                hint="text stands in single quotes, as in section = 'games'",
            )
        raise self._refused(where)

    def _only(self, node: exp.Expression, *known: str) -> None:
        """Parts of a node that we do not know would be lost silently: refuse them."""
        if any(value for name, value in node.args.items() if name not in known):
            raise self._refused(node)

    def _refused(self, node: exp.Expression) -> Refused:
        return Refused(
            f"{_quoted(_sql(node))} is not understood in a filter",
            hint="a filter takes =, <>, <, <=, >, >=, in, between, like, ilike, is null, 'x' = any(column), and, or, not; "
            + _columns_hint(list(self.columns.values())),
        )


def _sql(node: exp.Expression) -> str:
    return node.sql(dialect="postgres", comments=False)


def _convert(text: str, is_string: bool, column: Column) -> Value:
    if column.kind in ("integer", "number"):
        number = Decimal(text.strip())
        if not number.is_finite() or abs(number.adjusted()) > 400:
            raise ValueError(text)
        whole = column.kind == "integer" and number == number.to_integral_value()
        return int(number) if whole else number
    if not is_string:
        raise ValueError(text)
    match column.kind:
        case "text" | "texts":
            return text
        case "uuid":
            return UUID(text)
        case "date":
            return date.fromisoformat(text.strip())
        case "timestamp":
            moment = datetime.fromisoformat(text.strip())
            if moment.tzinfo:
                raise ValueError(text)
            return moment
        case "timestamptz":
            moment = datetime.fromisoformat(text.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    raise ValueError(text)


def _example(column: Column) -> str:
    if column.kind in MOMENTS:
        return "write it as '2024-12-31'" + ("" if column.kind == "date" else " or '2024-12-31 18:00'")
    if column.kind in ("integer", "number"):
        return "write a number, without quotes"
    if column.kind == "boolean":
        return "write true or false"
    return "write it in single quotes" + (", as a uuid" if column.kind == "uuid" else "")
