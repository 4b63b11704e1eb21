"""The two derivations of a table, from its stored rows: what a run, a search and a removal work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from instep.catalogues.tables.tables import shown
from instep.chunks.derivation import ChunkDerivation, making_of
from instep.engine.declaration import Declaration, Target
from instep.engine.ports import Conn
from instep.errors import Refused
from instep.inference.ports import Embedder
from instep.search.columns import Column, read_columns
from instep.search.derivation import SearchDerivation, SearchSink
from instep.search.engines.postgres import PostgresIndex
from instep.search.ports import Index
from instep.search.sinks import PostgresSink, TantivySink

EmbedderOf = Callable[[Target], Embedder]
"""Gives the model of a target; called once for each target, when the first text is to be worked."""


class Connections(Protocol):
    """What derivations need of a `Database`."""

    def connection(self) -> AbstractAsyncContextManager[Conn]: ...

    async def direct(self) -> Conn: ...


async def build(
    database: Connections, name: str, embedder_of: EmbedderOf, indexes: Path
) -> tuple[ChunkDerivation, SearchDerivation]:
    """The embedding and the search derivation of a table that was added. `indexes`: the data directory's place for
    indexes outside PostgreSQL. Raises Refused for an unknown name, and where a filter column is gone."""
    async with database.connection() as conn:
        table = await shown(conn, name)
        columns = await read_columns(conn, table.source, table.search.options["filters"])
    embed = ChunkDerivation(
        table.embed, lambda target: making_of(target, embedder_of(target)), database.direct
    )
    return embed, search_derivation(database, table.search, columns, indexes)


def search_derivation(
    database: Connections, search: Declaration, columns: Sequence[Column], indexes: Path
) -> SearchDerivation:
    """The search derivation over these filter columns; none are needed to drop what it holds, and one may be gone."""
    engine = search.options["engine"]
    sink: SearchSink
    if engine == "postgres":
        sink = PostgresSink(search, columns)
    elif engine == "tantivy":
        sink = TantivySink(indexes, search, columns, database.connection)
    else:
        raise Refused(f"{search.name} names a search engine that is not known here: {engine!r}.")
    return SearchDerivation(search, sink, columns)


def index_of(
    database: Connections, search: SearchDerivation, target: Target, columns: Sequence[Column]
) -> Index:
    """The lexical index of a target, to be searched: with connections of its own, where it needs some."""
    sink = search.sink
    if isinstance(sink, TantivySink):
        return sink.index(target)
    return PostgresIndex(search.declaration, target, columns, database.connection)
