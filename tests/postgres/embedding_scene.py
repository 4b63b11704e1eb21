"""A table, its embedding derivation and a model that counts what it is sent: what the chunk tests stand on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Declaration, Key, KeyColumn, Source, Target, fragments
from instep.engine.ports import Output
from instep.errors import Permanent
from instep.inference.ports import Embedded, Limits


class CountingModel:
    """Vectors that depend on the text alone; remembers each text; refuses those that hold the word `poison`."""

    def __init__(self, dimensions: int = 8) -> None:
        self.name, self.size = "counting", dimensions
        self.limits = Limits(32, 4, None, dimensions)
        self.sent: list[str] = []
        self.calls = 0
        self.cut: set[str] = set()

    def vector(self, text: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).standard_normal(self.size).astype(np.float32)
        return vector / np.linalg.norm(vector)

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embedded:
        self.calls += 1
        self.sent += texts
        failures = {
            i: Permanent("server answered 400", kind="input refused")
            for i, text in enumerate(texts)
            if "poison" in text
        }
        truncated = {i for i, text in enumerate(texts) if text in self.cut}
        return Embedded(np.stack([self.vector(text) for text in texts]), failures, truncated)

    async def probe(self) -> None:
        self.calls += 1

    async def dimensions(self) -> int:
        return self.size

    def measure(self) -> None:
        return None

    async def close(self) -> None: ...


def hash_of(*columns: str) -> str:
    return "instep.content_hash(" + " || ".join(f'instep.part("{c}"::text)' for c in columns) + ")"


@dataclass
class Scene:
    """`articles` under one derivation and one target; `work` does what the engine's wave and commit do."""

    conn: Any
    declaration: Declaration
    target: Target
    model: CountingModel
    derivation: ChunkDerivation
    stamps: dict[Key, bytes] = field(default_factory=dict)

    async def work(self, *keys: Key, stamped: Mapping[Key, bytes] | None = None) -> list[Output | Permanent]:
        stamped = {k: h for k, h in self.stamps.items() if k in keys} if stamped is None else stamped
        loaded = await self.derivation.load(self.conn, self.target, keys, stamped)
        items = [item for item in loaded.items if stamped.get(item.key) != item.hash]
        results = await self.derivation.compute(self.target, items)
        outputs = [result for result in results if isinstance(result, Output)]
        present = {item.key for item in loaded.items} | set(loaded.deferred)
        removed = [key for key in keys if key not in present]
        await self.write(outputs, removed)
        self.stamps.update({output.key: output.hash for output in outputs})
        for key in removed:
            self.stamps.pop(key, None)
        return list(results)

    async def write(self, outputs: Sequence[Output], removed: Sequence[Key] = ()) -> None:
        async with transaction(self.conn):
            await self.derivation.sink.write(self.conn, self.target, removed, outputs)

    async def do(self, statement: str) -> None:
        await self.conn.execute(sql.SQL(statement).format(chunk=self.tables.chunk, layout=self.tables.layout))

    async def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        text = sql.SQL(statement).format(
            chunk=self.tables.chunk, layout=self.tables.layout, index=self.tables.index
        )
        return await (await self.conn.execute(text, parameters or None)).fetchall()

    @property
    def tables(self):
        from instep.chunks.names import chunk_tables

        return chunk_tables(self.declaration, self.target)


async def scene(
    conn: Any,
    *,
    key: Sequence[KeyColumn] = (KeyColumn("id", "bigint"),),
    table: str = "articles",
    columns: Sequence[str] = ("title", "body"),
    dimensions: int = 8,
    type: str = "vector",
    prefix: str = "",
    splitter: str = "1000c",
    eligible: str = "true",
    content_bytes: int | None = None,
    create: bool = True,
) -> Scene:
    if create:
        definitions = sql.SQL(", ").join(
            [
                *(sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.declared)) for c in key),
                *(sql.SQL("{} text").format(sql.Identifier(c)) for c in columns),
                sql.SQL("published boolean default true"),
                sql.SQL("primary key ({})").format(sql.SQL(", ").join(sql.Identifier(c.name) for c in key)),
            ]
        )
        await conn.execute(sql.SQL("create table {} ({})").format(sql.Identifier(table), definitions))
    source = Source("articles", 0, "public", table, tuple(key))
    declaration = Declaration(
        "articles.embed",
        source,
        1,
        tuple(columns),
        hash_of(*columns),
        eligible,
        options={"text": list(columns)},
    )
    spec = {
        "dimensions": dimensions,
        "type": type,
        "splitter": splitter,
        "document_prefix": prefix,
        "columns": list(columns),
    }
    target = Target(1, "articles.embed", "counting-chunked-1000c-v1", "reading", spec)
    statements = Statements("instep.engine", "parts.sql", **fragments(declaration))
    await conn.execute(statements["create_outbox"], {})
    await conn.execute(statements["create_stamp"], {})
    model = CountingModel(dimensions)
    more = {} if content_bytes is None else {"content_bytes": content_bytes}

    async def direct() -> Any:
        return await psycopg.AsyncConnection.connect(conn.info.dsn, autocommit=True)

    derivation = ChunkDerivation(declaration, lambda target: making_of(target, model), direct, **more)
    await derivation.sink.prepare(conn, target)
    return Scene(conn, declaration, target, model, derivation)
