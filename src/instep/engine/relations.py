"""What a user's table is: found by the name as he writes it, with key, columns and all that may speak against it.

Nothing is refused here but a name that is none: the catalogue decides with these facts (catalogues/tables/).
Tests: tests/postgres/test_relations.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from psycopg import errors as pg

from instep.database.statements import Statements
from instep.engine.declaration import KeyColumn
from instep.engine.ports import Conn
from instep.errors import Refused

KEY_TYPES = ("smallint", "integer", "bigint", "uuid", "text", "character varying")
KINDS = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
    "i": "index",
    "I": "index",
    "c": "type",
}

_SQL = Statements("instep.engine", "relations.sql")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as format_type prints it
    attnum: int
    generated: str  # "", s (stored), v (virtual)
    nullable: bool
    collation: str  # quoted and qualified, where it is not the type's default
    base: str  # the type below a domain, without a length


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    table: str
    kind: str  # table, partitioned table, view, materialized view, foreign table, …
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...] | None  # the primary key, else a unique index over columns that are never null
    key_refusal: str  # why there is no key, as a sentence; empty where there is one
    row_estimate: float
    partitions: tuple[str, ...]  # and inheritance children, at any depth: quoted, qualified
    rls: bool  # row security hides rows from the current role
    persistence: str  # p permanent, u unlogged, t temporary
    is_partition: bool  # of another table

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    def column(self, name: str) -> Column:
        """One column by its exact name. Raises Refused, with near names."""
        for column in self.columns:
            if column.name == name:
                return column
        known = [column.name for column in self.columns]
        raise Refused(f"{self.name} has no column {name!r}.", hint=near(name, known, "columns"))


def near(name: str, known: Sequence[str], things: str) -> str:
    """A hint that names what the user may have meant, out of `known`."""
    if close := get_close_matches(name, known, n=3, cutoff=0.5):
        return "Did you mean " + " or ".join(close) + "?"
    if not known:
        return f"There are no {things} yet."
    more = "" if len(known) <= 20 else ", …"
    return f"The {things} are: {', '.join(known[:20])}{more}."


async def inspect(conn: Conn, text: str) -> Relation:
    """The relation of a name as a user writes it ("articles", "other.articles", '"odd.name"'), found as PostgreSQL
    would. Raises Refused for a name that is none, with near ones."""
    try:
        row = await (await conn.execute(_SQL["named"], {"text": text})).fetchone()
    except (pg.InvalidName, pg.FeatureNotSupported, pg.SyntaxError, pg.InvalidParameterValue) as error:
        hint = "Write table, schema.table, or with quotes: '\"odd name\"', 'schema.\"odd.name\"'."
        raise Refused(f"{text!r} is no name of a table: {str(error).splitlines()[0]}", hint=hint) from error
    if row is None or row[0] is None:
        known = [name for (name,) in await (await conn.execute(_SQL["known"], {})).fetchall()]
        raise Refused(f"There is no table {text!r}.", hint=near(text, known, "tables"))
    relation = await inspect_oid(conn, row[0])
    if relation is None:
        raise Refused(f"The table {text!r} was dropped just now.")
    return relation


async def inspect_oid(conn: Conn, oid: int) -> Relation | None:
    """The relation of that OID, or None where there is none (any more)."""
    values = {"oid": oid}
    row = await (await conn.execute(_SQL["relation"], values)).fetchone()
    if row is None:
        return None
    _, schema, table, kind, persistence, is_partition, rls, partitions = row
    columns = tuple(
        Column(*column) for column in await (await conn.execute(_SQL["columns"], values)).fetchall()
    )
    candidates = await unique_keys(conn, oid)
    key, refusal = _key(f"{schema}.{table}", columns, candidates)
    estimate = await row_estimate(conn, oid)
    return Relation(
        oid,
        schema,
        table,
        KINDS.get(str(kind), str(kind)),
        columns,
        key,
        refusal,
        estimate,
        tuple(partitions),
        rls,
        persistence,
        is_partition,
    )


async def unique_keys(conn: Conn, oid: int) -> list[tuple[str, ...]]:
    """The columns of each unique index over columns that are never null, the primary key's first."""
    rows = await (await conn.execute(_SQL["keys"], {"oid": oid})).fetchall()
    return [tuple(names) for (names,) in rows]


async def row_estimate(conn: Conn, oid: int) -> float:
    """About how many rows a table has, its partitions and children included, without reading it."""
    row = await (await conn.execute(_SQL["row_estimate"], {"oid": oid})).fetchone()
    assert row is not None
    return float(row[0])


def _key(
    name: str, columns: Sequence[Column], candidates: Sequence[Sequence[str]]
) -> tuple[tuple[KeyColumn, ...] | None, str]:
    by_name = {column.name: column for column in columns}
    for names in candidates:
        parts = [by_name[part] for part in names]
        if all(part.base in KEY_TYPES for part in parts):
            # Without a length: a varchar that is made longer later must not fail in our tables.
            return tuple(KeyColumn(part.name, part.base, part.collation) for part in parts), ""
    if not candidates:
        return (
            None,
            f"{name} has no key: no primary key, and no unique index over columns that are never null.",
        )
    odd = next(by_name[part] for part in candidates[0] if by_name[part].base not in KEY_TYPES)
    return None, (
        f"The key column {odd.name} of {name} is of type {odd.type}: keys can be of "
        f"{', '.join(KEY_TYPES[:-1])} or varchar."
    )
