"""Tables and columns that cannot be kept in step, each refused with its sentence and the next step."""

from __future__ import annotations

from collections.abc import Sequence

from instep.engine.relations import Column, Relation
from instep.errors import Refused

TEXT_TYPES = ("text", "character varying", "character", "citext", "name", "json", "jsonb")
NUMBER_TYPES = ("smallint", "integer", "bigint", "numeric", "boolean", "uuid")
MOMENT_TYPES = ("timestamp with time zone", "timestamp without time zone", "date")


def refuse_relation(relation: Relation) -> None:
    """Raises Refused for what is no table whose every change can be seen and whose rows can be told apart."""
    name = relation.name
    if relation.kind in ("view", "materialized view"):
        raise Refused(
            f"{name} is a {relation.kind}: triggers cannot see its rows change.",
            hint="Add the table behind it; the condition of the view can be given with --where.",
        )
    if relation.kind == "foreign table":
        raise Refused(
            f"{name} is a foreign table: what is written on its own server is not seen here.",
            hint="Run instep on that server, or copy the rows into a table.",
        )
    if relation.kind not in ("table", "partitioned table"):
        raise Refused(f"{name} is a {relation.kind}, not a table.")
    if relation.schema in ("instep", "pg_catalog", "information_schema"):
        raise Refused(
            f"{name} belongs to {'instep itself' if relation.schema == 'instep' else 'PostgreSQL'}."
        )
    if relation.persistence == "t":
        raise Refused(
            f"{name} is a temporary table: it ends with its session.", hint="Use an ordinary table."
        )
    if relation.is_partition:
        raise Refused(
            f"{name} is a partition: what is written through its parent would not be seen.",
            hint="Add the partitioned table itself.",
        )
    if relation.rls:
        raise Refused(
            f"Row-level security of {name} hides rows from this role: they would count as deleted.",
            hint="Let instep's role bypass it: alter role … bypassrls; or let it own the table (without force).",
        )
    if relation.key is None:
        raise Refused(relation.key_refusal, hint=_key_hint(relation))


def text_columns(relation: Relation, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns to embed. Refused where there are none, one is named twice, or is of no type that has one text."""
    if not names:
        likely = [c.name for c in relation.columns if c.base in TEXT_TYPES]
        raise Refused(
            "Which columns hold the text? --text is empty.",
            hint=f"{relation.name} has: --text {','.join(likely)}"
            if likely
            else f"{relation.name} has none of text.",
        )
    if len(set(names)) < len(names):
        raise Refused(f"--text names a column twice: {', '.join(names)}.")
    columns = tuple(watchable(relation, name) for name in names)
    for column in columns:
        if column.base not in TEXT_TYPES + NUMBER_TYPES:
            raise Refused(_no_text(relation, column), hint=_as_text(relation, column))
    return columns


def newest_column(relation: Relation, name: str) -> Column:
    column = watchable(relation, name)
    if column.base not in MOMENT_TYPES:
        moments = [c.name for c in relation.columns if c.base in MOMENT_TYPES]
        raise Refused(
            f"--newest takes a date or timestamp; {relation.name}.{name} is of type {column.type}.",
            hint=f"There is: --newest {' or '.join(moments)}"
            if moments
            else "Leave it out: then the order is by key.",
        )
    return column


def watchable(relation: Relation, name: str) -> Column:
    """A column whose changes a trigger can see. Raises Refused with near names, and for virtual generated ones."""
    column = relation.column(name)
    if column.generated == "v":
        raise Refused(
            f"{relation.name}.{name} is a virtual generated column: a trigger sees NULL in it.",
            hint="Make it STORED, or name the columns that it is made from.",
        )
    return column


def _no_text(relation: Relation, column: Column) -> str:
    name = f"{relation.name}.{column.name}"
    if column.base == "bytea":
        return f"{name} is of type bytea: bytes are no text."
    if column.base in MOMENT_TYPES or column.base.startswith(("time", "interval")):
        return f"{name} is of type {column.type}: its text depends on the session's settings."
    return f"{name} is of type {column.type}, which has no one text."


def _as_text(relation: Relation, column: Column) -> str:
    if column.base == "bytea":
        return "Store the text that they hold in a column of its own (convert_from(…, 'UTF8'))."
    return "Store it as text in a column of its own, written as your readers should read it, and name that."


def _key_hint(relation: Relation) -> str:
    if "of type" in relation.key_refusal:
        return (
            "Give it a unique index over not-null columns of such types, for example: "
            f"alter table {relation.name} add column {_free(relation)} bigint generated always as identity unique;"
        )
    return (
        f"add one:  alter table {relation.name} add column {_free(relation)} "
        "bigint generated always as identity primary key;"
    )


def _free(relation: Relation) -> str:
    taken = {column.name for column in relation.columns}
    return next(name for name in ("id", "row_id", "instep_id", "instep_row_id") if name not in taken)
