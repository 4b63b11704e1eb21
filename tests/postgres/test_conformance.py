"""Each Derivation with its Sink passes the engine's conformance suite, with a plain key and with a composite one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from finding_scene import KEYS, hash_of, value
from psycopg import errors, sql

from instep.chunks.derivation import ChunkDerivation, making_of
from instep.chunks.names import chunk_tables
from instep.engine.declaration import Columns, Declaration, Key, KeyColumn, Source, Target
from instep.engine.install import install
from instep.engine.ports import Conn, Item, Loaded
from instep.errors import Outage, Permanent
from instep.inference.providers import create_embedder
from instep.search.derivation import SearchDerivation
from instep.search.engines.postgres import PostgresIndex
from instep.search.ports import Query, query_terms
from instep.search.sinks import PostgresSink, TantivySink
from instep.testing.derivation_suite import WORDS, check_derivation
from instep.testing.model_server import ModelServer, vector_of
from instep.testing.toy import ToyDerivation

DIMENSIONS = 8


@dataclass
class Table:
    """`articles` with keys of some types; the suite's callbacks that have to do with rows."""

    conn: Conn
    writer: Conn
    declaration: Declaration
    target: Target
    server: ModelServer | None
    directory: Path

    derivation: ClassVar[Any]
    refused: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Makes `derivation`."""

    async def close(self) -> None: ...

    @property
    def keys(self) -> Sequence[Key]:
        return [tuple(value(column.type, n) for column in self.declaration.source.key) for n in (3, 1, 4, 2)]

    async def put(self, texts: Mapping[Key, str]) -> None:
        marks = ", ".join(["%s"] * len(self.declaration.source.key))
        names = ", ".join(column.name for column in self.declaration.source.key)
        for key, text in texts.items():
            await self.writer.execute(
                f"insert into articles ({names}, body) values ({marks}, %s)"
                f" on conflict ({names}) do update set body = excluded.body, published = true",
                (*key, text),
            )

    async def hide(self, key: Key) -> None:
        marks = ", ".join(["%s"] * len(key))
        names = ", ".join(column.name for column in self.declaration.source.key)
        await self.writer.execute(f"update articles set published = false where ({names}) = ({marks})", key)

    async def clear(self) -> None:
        await self.writer.execute("delete from articles")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Conn]:
        async with await psycopg.AsyncConnection.connect(self.writer.info.dsn, autocommit=True) as own:
            yield own


class Toy(Table):
    def __post_init__(self) -> None:
        self.derivation = ToyDerivation(self.declaration, "body")
        self.derivation.faults.refused = frozenset({"poison"})
        self.refused = "poison"

    async def read(self) -> Mapping[Key, Any]:
        return await self.derivation.sink.all(self.writer, self.target)

    def expected(self, text: str) -> Any:
        return text.upper()


class Chunks(Table):
    """Over real HTTP. An output is the entity's texts with their vectors, and its spans."""

    def __post_init__(self) -> None:
        self.server.faults.refuse = {"poison": 400}
        self.refused = "poison"
        embedder = create_embedder(
            "tei", url=self.server.url, model=self.server.model_name, dimensions=DIMENSIONS
        )
        self.derivation = ChunkDerivation(self.declaration, lambda target: making_of(target, embedder))
        self.close = embedder.close

    async def read(self) -> Mapping[Key, Any]:
        tables, key = (
            chunk_tables(self.declaration, self.target),
            Columns(self.declaration.source.key).listed(),
        )
        texts = sql.SQL("select {}, text, vector::real[] from {}").format(key, tables.chunk)
        spans = sql.SQL("select {}, starts, ends from {}").format(key, tables.layout)
        made: dict[Key, list[Any]] = {}
        try:
            for *of, text, vector in await (await self.writer.execute(texts)).fetchall():
                made.setdefault(tuple(of), []).append((text, [round(number, 4) for number in vector]))
            for *of, starts, ends in await (await self.writer.execute(spans)).fetchall():
                made.setdefault(tuple(of), []).append((starts, ends))
        except errors.UndefinedTable:
            return {}
        return made

    def expected(self, text: str) -> Any:
        if not text:
            return None
        vector = [round(float(number), 4) for number in vector_of(text, DIMENSIONS)]
        return [(text, vector)]  # and no span: one chunk that is the whole text needs none


class Search(Table):
    """An output is the words that its row is found by."""

    index: Any

    async def read(self) -> Mapping[Key, Any]:
        try:
            found: dict[Key, Any] = {key: set() async for key in self.index.keys()}  # noqa: SIM118
            for word in WORDS:
                for hit in (await self.index.search(Query(query_terms(word), limit=100))).hits:
                    found[hit.key].add(word)
        except (errors.UndefinedTable, Outage):
            return {}
        return found

    def expected(self, text: str) -> Any:
        return set(text.split())


class InPostgres(Search):
    def __post_init__(self) -> None:
        self.derivation = SearchDerivation(self.declaration, PostgresSink(self.declaration))
        self.index = PostgresIndex(self.declaration, self.target, (), self.connect)


class InTantivy(Search):
    def __post_init__(self) -> None:
        sink = TantivySink(self.directory, self.declaration, (), self.connect)
        self.derivation = SearchDerivation(self.declaration, sink)
        self.index, self.close = sink.index(self.target), sink.close


HARNESSES = {"ToySink": Toy, "ChunkSink": Chunks, "PostgresSink": InPostgres, "TantivySink": InTantivy}
"""By the name of the Sink: tests/unit/test_architecture.py looks here for each that stands in src."""


async def declared(conn: Conn, key: str) -> tuple[Declaration, Target]:
    names = [f"id_{place}" for place in range(1, len(KEYS[key]) + 1)]
    columns = [f"{name} {type}" for name, type in zip(names, KEYS[key], strict=True)]
    await conn.execute(
        f"create table articles ({', '.join(columns)}, body text, published boolean default true,"
        f" primary key ({', '.join(names)}))"
    )
    [(oid,)] = await (await conn.execute("select 'articles'::regclass::oid")).fetchall()
    of = tuple(KeyColumn(name, type) for name, type in zip(names, KEYS[key], strict=True))
    declaration = Declaration(
        "articles.made", Source("articles", oid, "public", "articles", of), 1, ("body", "published"),
        hash_of("body"), "published", options={"text": ["body"]},
    )  # fmt: skip
    spec = {"dimensions": DIMENSIONS, "type": "vector", "splitter": "1000c"}
    made = await install(
        conn, declaration.source, [declaration], [Target(0, declaration.name, "v1", "reading", spec)]
    )
    return made.declarations[0], made.targets[0]


@pytest.mark.parametrize("key", ["bigint", "composite"])
@pytest.mark.parametrize("sink", HARNESSES)
async def test_each_derivation_does_what_the_engine_relies_on(dsn, conn, tmp_path, sink, key):
    declaration, target = await declared(conn, key)
    async with (
        ModelServer("tei", dimensions=DIMENSIONS) as server,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as writer,
    ):
        harness = HARNESSES[sink](conn, writer, declaration, target, server, tmp_path)
        assert type(harness.derivation.sink).__name__ == sink
        try:
            await check_derivation(harness)
        finally:
            await harness.close()


# The suite itself: each fault is found


def forgets_the_ineligible(toy):
    load = toy.derivation.load

    async def faulty(conn, target, keys, stamped):
        hidden = [Item(key, b"h", "") for key in keys]
        loaded = await load(conn, target, keys, stamped)
        return Loaded(
            [*loaded.items, *(item for item in hidden if item.key not in {i.key for i in loaded.items})]
        )

    toy.derivation.load = faulty


def leaves_out_what_is_stamped(toy):
    load = toy.derivation.load

    async def faulty(conn, target, keys, stamped):
        loaded = await load(conn, target, keys, stamped)
        return Loaded([item for item in loaded.items if stamped.get(item.key) != item.hash])

    toy.derivation.load = faulty


def hashes_later_than_it_reads(toy):
    load = toy.derivation.load

    async def faulty(conn, target, keys, stamped):
        before = {item.key: item for item in (await load(conn, target, keys, stamped)).items}
        await asyncio.sleep(0.01)
        after = (await load(conn, target, keys, stamped)).items
        return Loaded([Item(item.key, item.hash, before.get(item.key, item).content) for item in after])

    toy.derivation.load = faulty


def turns_the_order(toy):
    compute = toy.derivation.compute

    async def faulty(target, items):
        return list(await compute(target, items))[::-1]

    toy.derivation.compute = faulty


def raises_for_a_bad_item(toy):
    compute = toy.derivation.compute

    async def faulty(target, items):
        results = await compute(target, items)
        return [result for result in results if not isinstance(result, Permanent)]

    toy.derivation.compute = faulty


def commits(toy):
    write = toy.derivation.sink.write

    async def faulty(conn, target, removed, outputs):
        await write(conn, target, removed, outputs)
        await conn.execute("commit")

    toy.derivation.sink.write = faulty


def writes_elsewhere(toy):
    write = toy.derivation.sink.write

    async def faulty(conn, target, removed, outputs):
        await write(toy.writer, target, removed, outputs)

    toy.derivation.sink.write = faulty


def keeps_what_is_removed(toy):
    write = toy.derivation.sink.write

    async def faulty(conn, target, removed, outputs):
        await write(conn, target, [], outputs)

    toy.derivation.sink.write = faulty


def empties_what_is_prepared(toy):
    prepare = toy.derivation.sink.prepare

    async def faulty(conn, target):
        await prepare(conn, target)
        await conn.execute("delete from instep.toy")

    toy.derivation.sink.prepare = faulty


def probe_writes(toy):
    async def faulty(target):
        await toy.writer.execute("update instep.toy set shout = 'probe'")

    toy.derivation.probe = faulty


@pytest.mark.parametrize(
    "fault",
    [
        forgets_the_ineligible, leaves_out_what_is_stamped, hashes_later_than_it_reads, turns_the_order,
        raises_for_a_bad_item, commits, writes_elsewhere, keeps_what_is_removed, empties_what_is_prepared, probe_writes,
    ],
)  # fmt: skip
async def test_the_suite_sees_the_fault(dsn, conn, tmp_path, fault):
    declaration, target = await declared(conn, "bigint")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as writer:
        toy = Toy(conn, writer, declaration, target, None, tmp_path)
        fault(toy)
        with pytest.raises(AssertionError):
            await check_derivation(toy)
