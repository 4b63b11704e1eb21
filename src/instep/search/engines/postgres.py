"""The lexical engine inside PostgreSQL: a tsvector of our own words, GIN, ts_rank_cd.

It is written in the engine's transaction, so it is never behind the stamps, and serves any number of machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from psycopg import sql

from instep.database.statements import Statements, compose
from instep.database.transactions import transaction
from instep.engine.declaration import SCHEMA, Columns, Declaration, Key, Target
from instep.engine.ports import Conn
from instep.search.columns import Column
from instep.search.live import live_rows
from instep.search.ports import FACET_VALUES, Document, Facet, Hit, Hits, Match, Query, Terms

_SQL = ("instep.search.engines", "postgres.sql")
_MAX_POSITION = 16_383
_MAX_POSITIONS = 256  # of one lexeme: more are dropped by the server
MAX_VECTOR_BYTES = 1_000_000
"""A tsvector holds 1,048,575 bytes of lexemes and positions."""

Connect = Callable[[], AbstractAsyncContextManager[Conn]]


class PostgresIndex:
    """The index table of one target. `connect` gives a connection for `search`, `keys` and `apply`; a sink calls
    `write` with its own instead. Filters and facets are those of the source as it is now."""

    def __init__(
        self,
        declaration: Declaration,
        target: Target,
        columns: Sequence[Column],
        connect: Connect | None = None,
    ) -> None:
        self._declaration, self._filters, self._connect = declaration, tuple(columns), connect
        self._columns = Columns(declaration.source.key)
        key = self._columns
        name = f"lexical_{declaration.suffix}_{target.id}"
        self.table = sql.Identifier(SCHEMA, name)
        self._fragments: dict[str, sql.Composable] = {
            "lexical": self.table,
            "lexical_index": sql.Identifier(f"{name}_words"),
            "stands": sql.Literal(sql.Identifier(SCHEMA, f"{name}_words").as_string(None)),
            "key": key.listed(),
            "key_definitions": key.definitions(),
            "key_unnest": key.unnest(),
            "key_k": key.listed("k"),
            "key_l": key.listed("l"),
            "on_a_l": key.equal("a", "l"),
            "on_d_l": key.equal("d", "l"),
        }
        self._statements = Statements(_SQL[0], _SQL[1], **self._fragments)

    async def create(self, conn: Conn) -> None:
        stands = await (await conn.execute(self._statements["stands"])).fetchone()
        if stands != (True,):
            await conn.execute(self._statements["create"])

    async def drop(self, conn: Conn) -> None:
        await conn.execute(self._statements["drop"])

    async def write(self, conn: Conn, remove: Sequence[Key], add: Sequence[Document]) -> None:
        """Replaces in the caller's transaction."""
        keys = [*remove, *(document.key for document in add)]
        if keys:
            await conn.execute(self._statements["lock"], self._columns.arrays(keys))
        if not add:
            return
        newest = {document.key: document for document in add}
        async with conn.cursor().copy(self._statements["copy"]) as copy:
            for document in newest.values():
                await copy.write_row((*document.key, tsvector(document.words)[0]))

    async def apply(self, epoch: int, remove: Sequence[Key], add: Sequence[Document]) -> None:
        async with self._connection() as conn, transaction(conn):
            await self.write(conn, remove, add)

    async def search(self, query: Query) -> Hits:
        if not query.terms:
            return Hits((), 0)
        async with self._connection() as conn:
            return await self._search(conn, query)

    async def matching(self, query: Query, after: Key | None) -> Sequence[Key]:
        if not query.terms:
            return ()
        live, parameters = live_rows(self._declaration, query.filter)
        passes: sql.Composable = sql.SQL("true")
        if query.filter is not None:
            passes = compose(*_SQL, "passes", live=live, on_a_l=self._fragments["on_a_l"])
        behind: sql.Composable = sql.SQL("true")
        if after is not None:
            behind = compose(
                *_SQL, "behind", key_l=self._columns.listed("l"), key_values=self._columns.values()
            )
            parameters |= self._columns.one(after)
        statement = compose(*_SQL, "matching", **self._fragments, passes=passes, behind=behind)
        parameters |= {"query": tsquery(query.terms, query.match), "limit": query.limit}
        async with self._connection() as conn:
            return [
                tuple(row)
                for row in await (await conn.execute(statement, parameters, prepare=False)).fetchall()
            ]

    async def keys(self) -> AsyncIterator[Key]:
        async with self._connection() as conn, transaction(conn):  # a server-side cursor lives in one
            async with conn.cursor(name="lexical_keys") as cursor:
                await cursor.execute(self._statements["keys"])
                async for row in cursor:
                    yield tuple(row)

    def _connection(self) -> AbstractAsyncContextManager[Conn]:
        assert self._connect is not None, "this index was made for a sink: it has no connections of its own"
        return self._connect()

    async def _search(self, conn: Conn, query: Query) -> Hits:
        live, parameters = live_rows(self._declaration, query.filter)
        passes: sql.Composable = sql.SQL("true")
        if query.filter is not None:
            passes = compose(*_SQL, "passes", live=live, on_a_l=self._fragments["on_a_l"])
        statement = compose(*_SQL, "search", **self._fragments, passes=passes)
        parameters["query"] = tsquery(query.terms, query.match)
        cursor = await conn.execute(statement, {**parameters, "limit": max(1, query.limit)}, prepare=False)
        rows = await cursor.fetchall()
        width = len(self._columns.names)
        hits = [Hit(tuple(row[:width]), float(row[width])) for row in rows[: query.limit]]
        facets = await self._facets(conn, query, parameters["query"]) if query.facets else {}
        return Hits(hits, rows[0][-1] if rows else 0, facets)

    async def _facets(self, conn: Conn, query: Query, words: str) -> Mapping[str, Sequence[Facet]]:
        facets: dict[str, Sequence[Facet]] = {}
        for column in self._filters:
            live, parameters = live_rows(self._declaration, query.filter, [("facet", column.encoded("a"))])
            values = compose(
                *_SQL,
                "each_value" if column.kind == "texts" else "one_value",
                column=sql.Identifier("a", "facet"),
            )
            statement = compose(*_SQL, "facet", **self._fragments, live=live, values=values)
            cursor = await conn.execute(
                statement, {**parameters, "query": words, "limit": FACET_VALUES}, prepare=False
            )
            facets[column.name] = [
                Facet(column.decode(value), count) for value, count in await cursor.fetchall()
            ]
        return facets


def _lexeme(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def tsquery(terms: Terms, match: Match) -> str:
    """The text of a tsquery of these words, all or any of them; each token is quoted, so it means itself."""
    words = ["(" + " & ".join(map(_lexeme, tokens)) + ")" for tokens in terms]
    return (" & " if match == "all" else " | ").join(words)


def tsvector(words: str) -> tuple[str, bool]:
    """The text of a tsvector of segmented words with their positions, and whether it had to leave words out: those
    that come first in a text are kept, up to MAX_VECTOR_BYTES."""
    positions: dict[str, list[int]] = defaultdict(list)
    size, cut = 0, False
    for number, word in enumerate(words.split(" ") if words else (), 1):
        known = positions.get(word)
        if known is None:
            size += len(word.encode()) + 4  # alignment and the count of positions
            if size > MAX_VECTOR_BYTES:
                cut = True
                break
        elif len(known) >= _MAX_POSITIONS:
            continue
        size += 2
        positions[word].append(min(number, _MAX_POSITION))
    return " ".join(f"{_lexeme(word)}:{','.join(map(str, at))}" for word, at in positions.items()), cut
