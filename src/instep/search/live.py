"""Hits are held against the source as it is now, however long the queue is.

A row that is gone, no longer eligible, or outside the filter never appears. A row whose content is not the one that
its stamp names is judged again by its current text (`Verified.texts`), so words that an update removed are not found,
before and after the run. Tests: postgres/test_search_staleness.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from instep.database.statements import Statements, compose, fragment
from instep.engine.declaration import Columns, Declaration, Key, Target, quoted
from instep.engine.ports import Conn
from instep.search.filters import Filter, to_sql

_SQL = ("instep.search", "live.sql")


@dataclass(frozen=True, slots=True)
class Verified:
    """A living row. `texts`: its current text columns where its stamp is of other content, else None."""

    texts: tuple[str | None, ...] | None

    @property
    def fresh(self) -> bool:
        return self.texts is None


@dataclass(frozen=True, slots=True)
class Row:
    """A living row for the page of results."""

    texts: tuple[str | None, ...]
    shown: Mapping[str, Any]


def more_columns(columns: Sequence[tuple[str, sql.Composable]]) -> sql.Composed:
    """Further columns of a `live_rows`, by the name that they get."""
    return sql.SQL("").join(
        compose(*_SQL, "column", value=value, name=sql.Identifier(name)) for name, value in columns
    )


def text_columns(names: Sequence[str], alias: str = "a") -> list[tuple[str, sql.Composable]]:
    """The text columns of a declaration as text_1, text_2, …"""
    return [
        (f"text_{number}", compose(*_SQL, "text", column=quoted(alias, name)))
        for number, name in enumerate(names, 1)
    ]


def live_rows(
    declaration: Declaration, filter: Filter | None = None, more: Sequence[tuple[str, sql.Composable]] = ()
) -> tuple[sql.Composed, dict[str, Any]]:
    """A subquery over the source, key_1 …, content_hash and `more` of its eligible rows that pass the filter; and the
    filter's parameters."""
    condition: sql.Composable = fragment("true")
    parameters: dict[str, Any] = {}
    if filter is not None:
        condition, parameters = to_sql(filter, "a")
    rows = compose(
        *_SQL,
        "rows",
        key=Columns(declaration.source.key).selected("a"),
        eligible=fragment(declaration.eligible),
        hash=fragment(declaration.hash),
        filter=condition,
        more=more_columns(more),
        relation=quoted(declaration.source.schema, declaration.source.table),
    )
    return rows, parameters


class Live:
    """The living rows of one derivation's target, under one filter."""

    def __init__(
        self, declaration: Declaration, target: Target, text: Sequence[str], filter: Filter | None
    ) -> None:
        columns = Columns(declaration.source.key)
        live, self._parameters = live_rows(declaration, filter, text_columns(text))
        names = [sql.Identifier(f"text_{number}") for number in range(1, len(text) + 1)]
        self._columns, self._target = columns, target
        self._statement = Statements(
            *_SQL,
            live=live,
            stamp=declaration.stamp,
            key_unnest=columns.unnest(),
            key_k=columns.listed("k"),
            key_v=columns.listed("v"),
            on_a_k=columns.equal("a", "k"),
            on_s_k=columns.equal("s", "k"),
            texts=sql.SQL("").join(
                compose(*_SQL, "column", value=sql.SQL("a.{}").format(n), name=n) for n in names
            ),
            texts_if_stale=sql.SQL("").join(compose(*_SQL, "text_if_stale", name=name) for name in names),
        )["verify"]

    async def verify(self, conn: Conn, keys: Sequence[Key]) -> dict[Key, Verified]:
        """Those of `keys` whose rows live and pass; a key that is absent must not be shown."""
        if not keys:
            return {}
        parameters = {**self._parameters, **self._columns.arrays(keys), "target": self._target.name}
        width = len(self._columns.names)
        return {
            tuple(row[:width]): Verified(None if row[width] else tuple(row[width + 1 :]))
            for row in await (await conn.execute(self._statement, parameters, prepare=False)).fetchall()
        }


async def page_rows(
    conn: Conn,
    declaration: Declaration,
    filter: Filter | None,
    keys: Sequence[Key],
    text: Sequence[str],
    show: Sequence[str],
) -> dict[Key, Row]:
    """The living ones of `keys` with their current text and the columns to show, as JSON values."""
    if not keys:
        return {}
    columns = Columns(declaration.source.key)
    shown: list[tuple[str, sql.Composable]] = [
        (f"show_{number}", compose(*_SQL, "shown", column=quoted("a", name)))
        for number, name in enumerate(show, 1)
    ]
    more = [*text_columns(text), *shown]
    live, parameters = live_rows(declaration, filter, more)
    statement = Statements(
        *_SQL,
        live=live,
        key_unnest=columns.unnest(),
        key_k=columns.listed("k"),
        on_a_k=columns.equal("a", "k"),
        columns=more_columns([(name, sql.Identifier("a", name)) for name, _ in more]),
    )["page"]
    cursor = await conn.execute(statement, {**parameters, **columns.arrays(keys)}, prepare=False)
    width = len(columns.names)
    middle = width + len(text)
    return {
        tuple(row[:width]): Row(tuple(row[width:middle]), dict(zip(show, row[middle:], strict=True)))
        for row in await cursor.fetchall()
    }
