"""The dense leg: a query's vector, and the rows whose chunks are nearest to it.

Recall at 10 against the exact answer is at least 0.95, also under a filter that keeps 1% (tests/postgres/
test_search_dense.py): where a filter keeps few rows their distances are computed, else the HNSW index is walked on
until enough rows pass, and where it gives up too early the exact answer takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Columns, Declaration, Key, Target
from instep.engine.ports import Conn
from instep.errors import Configuration
from instep.inference.ports import Embedder
from instep.search.filters import Filter
from instep.search.legs import Candidate, Fetched, Leg, living
from instep.search.live import Live, Verified, live_rows

EXACT_ROWS = 5_000
"""A filter that keeps no more rows is answered exactly: some 5 to 20 ms, and no recall to lose."""
_MAX_SCAN_TUPLES = 40_000
_EF_SEARCH = 100  # recall@10 0.998 at about 1 ms (PLATFORM.md)
_MAX_EF_SEARCH = 400

CurrentChunks = Callable[[Sequence[str | None]], set[bytes]]


@dataclass(frozen=True, slots=True)
class Dense:
    """What the dense leg of a table needs. `chunk`, `layout`: the reading target's tables. `current_chunks`: from the
    values of the text columns to the text_hash of each chunk that they have now, by the target's splitter."""

    declaration: Declaration
    target: Target
    chunk: sql.Identifier
    layout: sql.Identifier
    embedder: Embedder
    current_chunks: CurrentChunks
    query_prefix: str = ""
    vector_schema: str = ""  # where pgvector is installed; empty: on the search path

    @property
    def text(self) -> Sequence[str]:
        columns: Sequence[str] = self.declaration.options["text"]
        return columns


@dataclass(frozen=True, slots=True)
class Chunk:
    """The chunk that was hit; its place in the entity's text where the layout knows it."""

    text: str
    ordinal: int | None
    start: int | None
    end: int | None


async def query_vector(dense: Dense, text: str) -> str:
    """The query's vector as PostgreSQL reads it. Raises what the embedder raises, and Configuration for a vector that
    is not of the target's dimensions."""
    embedded = await dense.embedder.embed([dense.query_prefix + text], urgent=True)
    if 0 in embedded.failures:
        raise embedded.failures[0]
    values = embedded.vectors[0].tolist()
    wanted = dense.target.spec.get("dimensions")
    if wanted is not None and len(values) != wanted:
        raise Configuration(
            f"the model gives vectors of {len(values)} dimensions, target {dense.target.name} has {wanted}",
            setting="INSTEP_EMBED_MODEL",
            hint="search with the model that the target names",
        )
    return "[" + ",".join(map(repr, values)) + "]"


async def nearest_rows(conn: Conn, dense: Dense, vector: str, filter: Filter | None, wanted: int) -> Leg:
    """The `wanted` rows whose best chunks are nearest; score is the cosine similarity."""
    search = _Nearest(conn, dense, vector, filter)
    live = Live(dense.declaration, dense.target, dense.text, filter)
    exact = filter is not None and await search.keeps_few()
    chunks: dict[Key, set[bytes]] = {}

    def judge(candidate: Candidate, row: Verified) -> bool:
        if candidate.key not in chunks:
            chunks[candidate.key] = dense.current_chunks(row.texts or ())
        return candidate.text_hash in chunks[candidate.key]

    async def fetch(limit: int) -> Fetched:
        # Several chunks of one row are one hit: ask for more than are wanted.
        limit *= 2
        rows = await (search.exact(limit) if exact else search.walked(limit))
        return Fetched(rows, len(rows) < limit)

    async def verify(keys: Sequence[Key]) -> Mapping[Key, Verified]:
        return await live.verify(conn, keys)

    kept, dropped = await living(verify, wanted, fetch, judge)
    return Leg(kept, len(kept), dropped)


class _Nearest:
    def __init__(self, conn: Conn, dense: Dense, vector: str, filter: Filter | None) -> None:
        self._conn, self._filtered = conn, filter is not None
        columns = Columns(dense.declaration.source.key)
        live, parameters = live_rows(dense.declaration, filter)
        schema = (dense.vector_schema,) if dense.vector_schema else ()
        self._parameters: dict[str, Any] = {**parameters, "vector": vector}
        self._width = len(columns.names)
        self._sql = Statements(
            "instep.search",
            "dense.sql",
            chunk=dense.chunk,
            live=live,
            type=sql.Identifier(
                *schema, "halfvec" if dense.target.spec.get("type") == "halfvec" else "vector"
            ),
            distance=sql.SQL("operator({}.<=>)").format(sql.Identifier(*schema))
            if schema
            else sql.SQL("<=>"),
            key_a=columns.listed("a"),
            key_c=columns.listed("c"),
            on_a_c=columns.equal("a", "c"),
        )

    async def keeps_few(self) -> bool:
        rows = await self._rows("count_kept", EXACT_ROWS + 1)
        return int(rows[0][0]) <= EXACT_ROWS

    async def exact(self, limit: int) -> list[Candidate]:
        return self._candidates(await self._rows("exact_kept", limit))

    async def walked(self, limit: int) -> list[Candidate]:
        settings = (
            "hnsw.iterative_scan = relaxed_order",
            f"hnsw.ef_search = {min(_MAX_EF_SEARCH, max(_EF_SEARCH, limit))}",
            f"hnsw.max_scan_tuples = {_MAX_SCAN_TUPLES}",
        )
        async with transaction(self._conn, *settings):
            rows = await self._rows("nearest_kept" if self._filtered else "nearest", limit)
        if self._filtered and len(rows) < limit:  # the walk ended before enough rows passed
            rows = await self._rows("exact_kept", limit)
        return self._candidates(rows)

    async def _rows(self, name: str, limit: int) -> list[Any]:
        # Never prepared: a generic plan knows neither the limit nor what the filter keeps.
        cursor = await self._conn.execute(
            self._sql[name], {**self._parameters, "limit": limit}, prepare=False
        )
        return await cursor.fetchall()

    def _candidates(self, rows: Sequence[Any]) -> list[Candidate]:
        width = self._width
        # A walk gives what it found later later, and loses some recall if it is told to keep the order itself.
        ordered = sorted(rows, key=lambda row: float(row[width + 1]))
        return [Candidate(tuple(row[:width]), 1.0 - float(row[width + 1]), row[width]) for row in ordered]


async def hit_chunks(conn: Conn, dense: Dense, hits: Mapping[Key, bytes]) -> dict[Key, Chunk]:
    """The chunk of each hit, by the row's key. One that was replaced in the meantime is absent."""
    if not hits:
        return {}
    columns = Columns(dense.declaration.source.key)
    statement = Statements(
        "instep.search",
        "dense.sql",
        chunk=dense.chunk,
        layout=dense.layout,
        key_k=columns.listed("k"),
        on_c_k=columns.equal("c", "k"),
        on_l_k=columns.equal("l", "k"),
        key_hash_unnest=columns.unnest(("hash", "bytea")),
    )["chunks"]
    parameters = {**columns.arrays(hits), "hash": list(hits.values())}
    rows = await (await conn.execute(statement, parameters, prepare=False)).fetchall()
    width = len(columns.names)
    return {tuple(row[:width]): Chunk(*row[width:]) for row in rows}
