"""A filter's tree as a tantivy query: each leaf is true for the documents for which SQL says true.

A NULL has no value in the index, so "not equal" is "has a value, and not this one". An array holds PRESENT besides its
elements, so that an empty one differs from NULL.
"""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

from tantivy import FieldType, Occur, Query, Schema

from instep.errors import Refused
from instep.search.columns import Column, microseconds
from instep.search.filters import And, Comparison, Filter, Has, Like, Member, Null, Or

PRESENT = "\x00"
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def field_name(column: Column) -> str:
    """The field of a column: any name and its kind fit, so that a retyped column is another field."""
    return f"{column.kind}_{column.name.encode().hex()}"


def filter_query(schema: Schema, node: Filter) -> Query:
    """Raises Refused for a pattern that is too much for the engine."""
    match node:
        case And(parts):
            return Query.boolean_query([(Occur.Must, filter_query(schema, part)) for part in parts])
        case Or(parts):
            return _either([filter_query(schema, part) for part in parts])
        case Comparison(column, operator, value):
            return _comparison(schema, column, operator, value)
        case Member(column, values, negated):
            found = _either([_comparison(schema, column, "=", value) for value in values])
            return _but_not(_exists(schema, column), found) if negated else found
        case Null(column, negated):
            exists = _exists(schema, column)
            return exists if negated else _but_not(Query.all_query(), exists)
        case Has(column, value, negated):
            found = Query.term_query(schema, field_name(column), value, "basic")
            return _but_not(_exists(schema, column), found) if negated else found
        case Like(column, pattern, insensitive, negated):
            try:
                found = Query.regex_query(schema, field_name(column), like_to_regex(pattern, insensitive))
            except ValueError as error:
                raise Refused(f"the pattern {pattern!r} is too much for the index") from error
            return _but_not(_exists(schema, column), found) if negated else found


def like_to_regex(pattern: str, insensitive: bool = False) -> str:
    """LIKE's % and _ and \\ as a regular expression for a whole value."""
    pieces, characters = [], iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append("(.|\n)*")
        elif character == "_":
            pieces.append("(.|\n)")
        else:
            pieces.append(_literal(next(characters, "") if character == "\\" else character, insensitive))
    return "".join(pieces)


def _literal(character: str, insensitive: bool) -> str:
    forms = {character}
    if insensitive:
        forms |= {form for form in (character.lower(), character.upper()) if len(form) == 1}
    escaped = [
        form if form.isalnum() or form.isspace() or ord(form) > 127 else f"\\{form}" for form in sorted(forms)
    ]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _comparison(schema: Schema, column: Column, operator: str, value: Any) -> Query:
    name = field_name(column)
    if isinstance(value, date):  # a datetime is one too
        value = microseconds(value)
    if operator == "<>":
        return _but_not(_exists(schema, column), _comparison(schema, column, "=", value))
    if column.kind == "number":
        bound = float(value)
        if operator == "=":
            return Query.range_query(schema, name, FieldType.Float, bound, bound)
        return _range(schema, name, FieldType.Float, operator, bound)
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return _whole(schema, column, operator, value)
    if column.kind == "boolean":
        return Query.term_query(schema, name, bool(value))
    return Query.term_query(schema, name, str(value), "basic")


def _whole(schema: Schema, column: Column, operator: str, value: Decimal | int) -> Query:
    """A whole number against any number: 3 < 3.5 is 3 <= 3, and what no bigint reaches is all or nothing."""
    if operator == "=":
        if value != int(value) or not _LOWEST <= value <= _HIGHEST:
            return Query.empty_query()
        return Query.term_query(schema, field_name(column), int(value))
    if operator in ("<", "<="):
        highest = math.ceil(value) - 1 if operator == "<" else math.floor(value)
        if highest < _LOWEST:
            return Query.empty_query()
        return _range(schema, field_name(column), FieldType.Integer, "<=", min(highest, _HIGHEST))
    lowest = math.floor(value) + 1 if operator == ">" else math.ceil(value)
    if lowest > _HIGHEST:
        return Query.empty_query()
    return _range(schema, field_name(column), FieldType.Integer, ">=", max(lowest, _LOWEST))


def _range(schema: Schema, name: str, type: FieldType, operator: str, bound: float) -> Query:
    if operator in ("<", "<="):
        return Query.range_query(schema, name, type, None, bound, True, operator == "<=")
    return Query.range_query(schema, name, type, bound, None, operator == ">=", True)


def _exists(schema: Schema, column: Column) -> Query:
    if column.kind == "texts":
        return Query.term_query(schema, field_name(column), PRESENT, "basic")
    return Query.exists_query(field_name(column))


def _either(queries: list[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, query) for query in queries])


def _but_not(query: Query, excluded: Query) -> Query:
    return Query.boolean_query([(Occur.Must, query), (Occur.MustNot, excluded)])
