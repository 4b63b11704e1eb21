"""The whole embedding path over real HTTP: a table, capture, the engine's run, the chunk sink, a model server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.chunks.names import ChunkTables, chunk_tables
from instep.clock import SYSTEM
from instep.engine import install
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.ports import Conn, RunReport
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.wave import Limits
from instep.inference.ports import Embedder
from instep.inference.providers import create_embedder
from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder

DIMENSIONS = 8


@dataclass
class EmbeddingWorld:
    """`articles(id, title, published)`, embedded by `server`."""

    dsn: str
    conn: Conn
    server: ModelServer
    embedder: Embedder
    source: Source
    derivation: ChunkDerivation
    target: Target
    recorder: Recorder = field(default_factory=Recorder)

    @classmethod
    async def make(cls, dsn: str, conn: Conn, server: ModelServer, **settings: Any) -> EmbeddingWorld:
        await conn.execute(
            "create table articles (id bigint primary key, title text, published boolean not null default true)"
        )
        oid = (await (await conn.execute("select 'articles'::regclass::oid")).fetchone())[0]
        source = Source("articles", oid, "public", "articles", (KeyColumn("id", "bigint"),))
        declared = Declaration(
            "articles.embed", source, 1, ("title", "published"), "instep.content_hash(instep.part(title))",
            "published", "", "tests", {"text": ["title"]},
        )  # fmt: skip
        spec = {"dimensions": server.dimensions, "type": "vector", "splitter": "1000c"}
        made = await install.install(
            conn, source, [declared], [Target(0, "articles.embed", "test-v1", "reading", spec)]
        )

        async def at_once(_seconds: float) -> None:
            return

        embedder = create_embedder(
            "tei", url=server.url, model=server.model_name, dimensions=server.dimensions, sleep=at_once,
            **{"batch": 500, **settings},
        )  # fmt: skip
        derivation = ChunkDerivation(made.declarations[0], lambda target: making_of(target, embedder))
        return cls(dsn, conn, server, embedder, source, derivation, made.targets[0])

    @property
    def tables(self) -> ChunkTables:
        return chunk_tables(self.derivation.declaration, self.target)

    async def insert(self, rows: int, first: int = 1) -> None:
        statement = "insert into articles (id, title) select g, 'title ' || g from generate_series(%s::int, %s::int) g"
        await self.conn.execute(statement, (first, first + rows - 1))

    async def dedicated(self) -> Conn:
        conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        await conn.execute("set timezone = 'UTC'; set datestyle = 'ISO'; set extra_float_digits = 1")
        return conn

    async def run(self, *, stop: Stop | None = None, **limits: Any) -> RunReport:
        reports = await run(
            self, self.source, [self.derivation], clock=SYSTEM, observer=self.recorder,
            options=Options(Limits(**limits)), stop=stop or Stop(),
        )  # fmt: skip
        return reports[0]

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return await (await self.conn.execute(statement)).fetchall()

    async def entries(self) -> dict[int, tuple[int, str | None, str | None, bool]]:
        """Key → (attempts, error kind, error, dead)."""
        rows = await self.rows(
            "select key_1, attempts, error_kind, last_error, failed_at is not null from instep.outbox_articles_embed"
        )
        return {key: tuple(rest) for key, *rest in rows}

    async def chunks(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        chunk = self.tables.chunk.as_string(None)
        for key, text in await self.rows(f"select key_1, text from {chunk}"):
            found.setdefault(key, set()).add(text)
        return found

    async def stamped(self) -> set[int]:
        return {key for (key,) in await self.rows("select key_1 from instep.stamp_articles_embed")}
