"""A table with both its derivations, worked by hand as the engine would: what the search tests stand on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
from embedding_scene import CountingModel, hash_of

from instep.chunks.derivation import ChunkDerivation, Making
from instep.chunks.names import chunk_tables
from instep.chunks.splitting import splitter_of
from instep.database.transactions import WORKER, transaction
from instep.engine import install
from instep.engine.declaration import Columns, Declaration, Key, KeyColumn, Source, Target
from instep.engine.ports import Output
from instep.search.answers import Answer
from instep.search.columns import Column, read_columns
from instep.search.dense import Dense
from instep.search.derivation import SearchDerivation, target_name
from instep.search.engines.postgres import PostgresIndex
from instep.search.lexical import Lexical
from instep.search.search import Request, Searchable, search
from instep.search.sinks import PostgresSink, TantivySink
from instep.text.compose import entity_text

FILTERS = ("section", "price", "stock", "published", "at", "day", "tags", "owner", "mood", "We ird")
TABLE = """
create type mood as enum ('glad', 'sad');
create table articles (
    id bigint primary key, title text, body text, "open" boolean not null default true, section text, price numeric(12,2),
    stock integer, published boolean, at timestamptz, day date, tags text[], owner uuid, mood mood, "We ird" varchar(40),
    noise integer default 0
)"""


@dataclass
class SearchScene:
    dsn: str
    conn: Any
    source: Source
    embed: ChunkDerivation
    lexical: SearchDerivation
    targets: dict[str, Target]
    columns: tuple[Column, ...]
    model: CountingModel
    engine: str
    directory: Path
    opened: list[str] = field(default_factory=list)

    @classmethod
    async def make(
        cls,
        dsn: str,
        conn: Any,
        directory: Path,
        engine: str = "postgres",
        *,
        table: str = TABLE,
        key: Sequence[KeyColumn] = (KeyColumn("id", "bigint"),),
        filters: Sequence[str] = FILTERS,
        eligible: str = '"open"',
        type: str = "vector",
        dimensions: int = 8,
    ) -> SearchScene:
        await conn.execute(table)
        oid = (await (await conn.execute("select 'articles'::regclass::oid")).fetchone())[0]
        source = Source("articles", oid, "public", "articles", tuple(key))
        text = ["title", "body"]
        columns = await read_columns(conn, source, filters)
        shown = hash_of(*text, *filters)
        embed = Declaration(
            "articles.embed",
            source,
            1,
            ("title", "body", "open"),
            hash_of(*text),
            eligible,
            options={"text": text},
        )
        lexical = Declaration(
            "articles.search",
            source,
            2,
            ("title", "body", "open", *filters),
            shown,
            eligible,
            options={"text": text},
        )
        spec = {"dimensions": dimensions, "type": type, "splitter": "200c", "columns": text}
        made = await install.install(
            conn,
            source,
            [embed, lexical],
            [
                Target(0, "articles.embed", "counting-chunked-v1", "reading", spec),
                Target(0, "articles.search", target_name(engine), "reading"),
            ],
        )
        targets = {target.derivation: target for target in made.targets}
        embed, lexical = sorted(made.declarations, key=lambda d: d.bit)
        model = CountingModel(dimensions)
        making = Making(model, splitter_of("200c", None))

        @asynccontextmanager
        async def connect():
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
                yield own

        sink = (
            TantivySink(directory, lexical, columns, connect)
            if engine == "tantivy"
            else PostgresSink(lexical, columns)
        )
        scene = cls(
            dsn,
            conn,
            source,
            ChunkDerivation(embed, lambda _: making),
            SearchDerivation(lexical, sink, columns),
            targets,
            columns,
            model,
            engine,
            directory,
        )
        scene.connect = connect
        for derivation in (scene.embed, scene.lexical):
            await derivation.sink.prepare(conn, targets[derivation.declaration.name])
        return scene

    @property
    def chunks(self):
        return chunk_tables(self.embed.declaration, self.targets["articles.embed"])

    @property
    def index(self):
        target = self.targets["articles.search"]
        if self.engine == "tantivy":
            return self.lexical.sink.index(target)
        return PostgresIndex(self.lexical.declaration, target, self.columns, self.connect)

    async def insert(self, id: int, title: str, body: str = "", **more: Any) -> Key:
        row = {"id": id, "title": title, "body": body, **more}
        names = ", ".join('"' + name.replace("_ird", " ird") + '"' for name in row)
        marks = ", ".join(f"%({name})s" for name in row)
        await self.conn.execute(f"insert into articles ({names}) values ({marks})", row)
        return (id,)

    async def do(self, statement: str, *parameters: Any) -> None:
        await self.conn.execute(statement, parameters or None)

    async def ids(self, where: str) -> set[int]:
        cursor = await self.conn.execute(f"select id from articles where {where}".encode())
        return {id for (id,) in await cursor.fetchall()}

    async def work(self, *keys: Key, only: str = "") -> None:
        """What a run does with these keys, in both derivations (or in `only` one of them)."""
        for derivation in (self.embed, self.lexical):
            declaration = derivation.declaration
            if only and declaration.name != only:
                continue
            target, columns = self.targets[declaration.name], Columns(declaration.source.key)
            loaded = await derivation.load(self.conn, target, keys, {})
            outputs = [o for o in await derivation.compute(target, loaded.items) if isinstance(o, Output)]
            present = {item.key for item in loaded.items}
            removed = [key for key in keys if key not in present]
            async with transaction(self.conn, WORKER):
                await derivation.sink.write(self.conn, target, removed, outputs)
                stamp = declaration.stamp.as_string()
                names = ", ".join(columns.names)
                marks = ", ".join(["%s"] * len(columns.names))
                for key in keys:
                    await self.conn.execute(f"delete from {stamp} where ({names}) = ({marks})", key)
                for output in outputs:
                    await self.conn.execute(
                        f"insert into {stamp} ({names}, target, content_hash) values ({marks}, %s, %s)",
                        (*output.key, target.name, output.hash),
                    )
            await derivation.sink.finish(self.conn, target)

    def current_chunks(self, values: Sequence[str | None]) -> set[bytes]:
        split = splitter_of("200c", None).split
        return {sha256(chunk.text.encode()).digest() for chunk in split(entity_text(values))}

    def searchable(self, *, dense: bool = True, lexical: bool = True, embedder: Any = None) -> Searchable:
        return Searchable(
            Lexical(self.lexical.declaration, self.targets["articles.search"], self.index)
            if lexical
            else None,
            Dense(
                self.embed.declaration,
                self.targets["articles.embed"],
                self.chunks.chunk,
                self.chunks.layout,
                embedder or self.model,
                self.current_chunks,
            )
            if dense
            else None,
            self.columns,
            ("section", "price", "at"),
        )

    async def search(self, text: str, mode: str = "lexical", **more: Any) -> Answer:
        return await search(self.searchable(), self.connect, Request(text, mode, **more))

    async def found(self, text: str, mode: str = "lexical", **more: Any) -> list[Any]:
        return [result.key[0] for result in (await self.search(text, mode, **more)).results]
