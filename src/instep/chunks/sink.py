"""Where embeddings go: two tables for each target, written by difference in the engine's transaction.

Invariants:
- a chunk that an entity still has is not rewritten, wherever it moved (test_chunks_sink.py: test_paragraph_on_top);
- a vector is never missing where the layout names it: what was to be reused and is gone is computed again
  (test_reused_chunk_that_is_gone);
- the number of round trips does not depend on the number of entities (test_round_trips).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from psycopg import sql

from instep.chunks import vector_index
from instep.chunks.binary_rows import chunk_rows, key_writer, layout_rows, vector_fields
from instep.chunks.entity_chunks import EntityChunks, Vectors
from instep.chunks.key_arrays import key_arrays, placed
from instep.chunks.names import ChunkTables, chunk_tables
from instep.chunks.vector_type import fits_page, known_type, pgvector_schema
from instep.database.statements import Statements, storage
from instep.engine.declaration import Columns, Declaration, Key, Target
from instep.engine.ports import Conn, Output
from instep.errors import Refused, Retryable

Direct = Callable[[], Awaitable[Conn]]
"""Gives a connection of one's own, straight to the server, to be closed: `Database.direct`."""


class ChunkSink:
    """`engine.ports.Sink` for outputs whose value is an `EntityChunks`. The vector index is built on a connection that
    `direct` gives; without it none is built."""

    transactional = True

    def __init__(self, declaration: Declaration, direct: Direct | None = None) -> None:
        self._declaration = declaration
        self._columns = Columns(declaration.source.key)
        self._key_fields = key_writer(declaration.source.key)
        self._direct = direct
        self._bound: dict[int, Statements] = {}

    async def prepare(self, conn: Conn, target: Target) -> None:
        tables, statements = self._tables(target), self._statements(target)
        dimensions, type = int(target.spec["dimensions"]), known_type(str(target.spec["type"]))
        schema = await pgvector_schema(conn)
        if await _one(conn, statements["stands"], {"chunk": tables.chunk.as_string(None)}):
            return
        vector = sql.SQL("{}.{}({})").format(sql.Identifier(schema), sql.SQL(type), sql.Literal(dimensions))
        creating = Statements("instep.chunks", "sink.sql", **self._fragments(target), vector=vector)
        await conn.execute(creating["create_layout"], {})
        await conn.execute(creating["create_chunk"], {})
        if fits_page(dimensions, type):
            await conn.execute(creating["store_plain"], {})

    async def intact(self, conn: Conn, target: Target) -> bool:
        """Always: the output commits with its stamp."""
        return True

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        """Replace what these entities had. Retryable if a chunk that was to be reused is not there any more."""
        statements = self._statements(target)
        keys = [*(output.key for output in outputs), *removed]
        if not keys:
            return
        old_hashes, old_layouts = await self._read_old(conn, statements, keys)

        gone: list[tuple[Key, bytes]] = []
        moved: list[Key] = []
        fresh: list[tuple[bytes, bytes, str]] = []
        vectors: list[tuple[Vectors, Sequence[int]]] = []
        layouts: list[tuple[bytes, Sequence[bytes], Sequence[int], Sequence[int]]] = []
        for place, output in enumerate(outputs):
            chunks: EntityChunks = output.value
            held = old_hashes.get(place)
            if held is None and len(chunks.fresh) == len(chunks.hashes):
                # The common case, a first fill: nothing is there, nothing repeats.
                if chunks.hashes:
                    fields = self._key_fields(output.key)
                    for digest, text in chunks.fresh.items():
                        fresh.append((fields, digest, text))
                    vectors.append((chunks.vectors, chunks.rows))
                    if not chunks.whole:
                        layouts.append((fields, chunks.hashes, chunks.starts, chunks.ends))
                if place in old_layouts:
                    moved.append(output.key)
                continue
            held = held or frozenset()
            wanted = set(chunks.hashes)
            self._check_reused(output.key, wanted - held - chunks.fresh.keys())
            gone += [(output.key, digest) for digest in held - wanted]
            fields = self._key_fields(output.key)
            rows = [row for row, digest in zip(chunks.rows, chunks.fresh, strict=True) if digest not in held]
            if rows:
                fresh += [
                    (fields, digest, text) for digest, text in chunks.fresh.items() if digest not in held
                ]
                vectors.append((chunks.vectors, rows))
            layout = old_layouts.get(place)
            needed = (
                None if chunks.whole or not chunks.hashes else (chunks.hashes, chunks.starts, chunks.ends)
            )
            if layout != needed:
                if layout is not None:
                    moved.append(output.key)
                if needed is not None:
                    layouts.append((fields, *needed))
        for place in range(len(outputs), len(keys)):
            gone += [(keys[place], digest) for digest in old_hashes.get(place, ())]
            if place in old_layouts:
                moved.append(keys[place])

        if gone:
            arrays = key_arrays(self._columns, [key for key, _ in gone])
            arrays["text_hash"] = [digest for _, digest in gone]
            await conn.execute(statements["delete_chunks"], arrays)
        if moved:
            await conn.execute(statements["delete_layouts"], key_arrays(self._columns, moved))
        if fresh:
            data = chunk_rows(
                len(self._columns.key), fresh, vector_fields(_gathered(vectors), str(target.spec["type"]))
            )
            await _copy(conn, statements["copy_chunks"], data)
        if layouts:
            await _copy(conn, statements["copy_layouts"], layout_rows(len(self._columns.key), layouts))

    async def finish(self, conn: Conn, target: Target) -> None:
        """Build the vector index when the first fill is as good as over: `vector_index`."""
        tables = self._tables(target)
        outcome = await vector_index.look(conn, tables, self._declaration, target)
        if outcome != "due" or self._direct is None:
            return
        own = await self._direct()
        try:
            await vector_index.build(own, conn, tables, target)
        finally:
            await own.close()

    async def drop(self, conn: Conn, target: Target) -> None:
        await conn.execute(self._statements(target)["drop"], {})

    async def describe(self, conn: Conn, target: Target, key: Key) -> Mapping[str, Any]:
        """What stands of one entity: chunks, distinct texts (each has a vector) and characters. For `explain`."""
        statement = self._statements(target)["describe"]
        row = await (await conn.execute(statement, self._columns.one(key))).fetchone()
        chunks, characters, vectors = row or (0, 0, 0)
        return {"chunks": chunks, "vectors": vectors, "characters": characters}

    async def _read_old(
        self, conn: Conn, statements: Statements, keys: Sequence[Key]
    ) -> tuple[
        dict[int, frozenset[bytes]], dict[int, tuple[tuple[bytes, ...], tuple[int, ...], tuple[int, ...]]]
    ]:
        """Hashes of chunk rows and layouts that stand now, by the key's place in `keys`."""
        parameters = key_arrays(self._columns, keys)
        rows = await (await conn.execute(statements["read_old"], parameters, binary=True)).fetchall()
        hashes = {row[0] - 1: frozenset(row[1]) for row in rows if row[1] is not None}
        layouts = {
            row[0] - 1: (tuple(row[2]), tuple(row[3]), tuple(row[4])) for row in rows if row[2] is not None
        }
        return hashes, layouts

    def _check_reused(self, key: Key, missing: set[bytes]) -> None:
        if missing:
            raise Retryable(
                f"{len(missing)} chunks of {self._declaration.name} {_shown(key)} were to be reused, and are gone",
                kind="reused chunk gone",
            )

    def _tables(self, target: Target) -> ChunkTables:
        return chunk_tables(self._declaration, target)

    def _fragments(self, target: Target) -> dict[str, sql.Composable]:
        tables, columns = self._tables(target), self._columns
        return {
            "chunk": tables.chunk,
            "layout": tables.layout,
            "key": columns.listed(),
            "key_definitions": columns.definitions(),
            "keys": columns.unnest(),
            "keys_placed": placed(columns),
            "keys_hashed": columns.unnest(("text_hash", "bytea")),
            "on_c_k": columns.equal("c", "k"),
            "on_l_k": columns.equal("l", "k"),
            "key_c": columns.listed("c"),
            "key_l": columns.listed("l"),
            "key_values": columns.values(),
        }

    def _statements(self, target: Target) -> Statements:
        bound = self._bound.get(target.id)
        if bound is None:
            bound = Statements("instep.chunks", "sink.sql", **self._fragments(target))
            self._bound[target.id] = bound
        return bound


def _gathered(parts: Sequence[tuple[Vectors, Sequence[int]]]) -> Vectors:
    """The rows of all parts in their order. A wave's parts share one array: then nothing is copied, or once."""
    shared = parts[0][0]
    if any(vectors is not shared for vectors, _ in parts):
        import numpy as np

        return np.concatenate([vectors[list(rows)] for vectors, rows in parts])
    rows = [row for _, rows in parts for row in rows]
    first, count = rows[0], len(rows)
    return shared[first : first + count] if rows == list(range(first, first + count)) else shared[rows]


def settings_of() -> tuple[dict[str, str], dict[str, str]]:
    """The settings that a table of chunks and one of layouts are made with."""
    chunk, layout = (storage("instep.chunks", "sink.sql", f"create_{name}") for name in ("chunk", "layout"))
    return chunk, layout


async def _copy(conn: Conn, statement: bytes, data: bytes) -> None:
    async with conn.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(data)


async def _one(conn: Conn, statement: bytes, parameters: dict[str, Any]) -> Any:
    row = await (await conn.execute(statement, parameters)).fetchone()
    if row is None:
        raise Refused("a statement that always gives a row gave none")
    return row[0]


def _shown(key: Key) -> str:
    return str(key[0]) if len(key) == 1 else str(list(map(str, key)))
