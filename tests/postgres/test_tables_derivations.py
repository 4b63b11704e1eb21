"""From stored rows to working derivations, with each search engine, and back to nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager

import psycopg
import pytest
from embedding_scene import CountingModel
from tables_scene import ARTICLES, added, catalogue

from instep.catalogues.tables.derivations import build
from instep.catalogues.tables.tables import remove, shown
from instep.database.transactions import transaction
from instep.engine.ports import Output
from instep.errors import Refused


class Connections:
    def __init__(self, dsn):
        self.dsn = dsn

    async def direct(self):
        return await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)

    @asynccontextmanager
    async def connection(self):
        async with await self.direct() as conn:
            yield conn


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
async def test_built_worked_and_removed(conn, dsn, tmp_path, engine):
    await conn.execute(ARTICLES)
    await conn.execute("insert into articles (title, section) values ('one', 'a'), ('two', 'b')")
    before = await catalogue(conn)
    await added(conn, engine=engine, filters=("section",))
    models = []

    def embedder_of(target):
        models.append(CountingModel(target.spec["dimensions"]))
        return models[-1]

    derivations = await build(Connections(dsn), "articles", embedder_of, tmp_path / "indexes")
    assert not models
    table = await shown(conn, "articles")
    for derivation in derivations:
        (target,) = [t for t in table.targets if t.derivation == derivation.declaration.name]
        await derivation.sink.prepare(conn, target)
        await derivation.sink.prepare(conn, target)
        assert await derivation.sink.intact(conn, target)
        loaded = await derivation.load(conn, target, [(1,), (2,), (3,)], {})
        assert [item.key for item in loaded.items] == [(1,), (2,)]
        outputs = await derivation.compute(target, loaded.items)
        assert all(isinstance(output, Output) for output in outputs)
        async with transaction(conn):
            await derivation.sink.write(conn, target, [(3,)], outputs)
        await derivation.sink.finish(conn, target)
    assert models[0].sent == ["one", "two"]
    rows = await (await conn.execute("select id, text from instep.articles_chunks order by 1")).fetchall()
    assert rows == [(1, "one"), (2, "two")]
    await remove(conn, "articles", derivations)
    assert await catalogue(conn) == before
    assert not list((tmp_path / "indexes").glob("*")) or engine == "postgres"


async def test_unknown_name(dsn, tmp_path):
    with pytest.raises(Refused, match="no table 'nothing'"):
        await build(Connections(dsn), "nothing", lambda _: CountingModel(), tmp_path)
