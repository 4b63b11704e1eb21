"""A table within the app: added, run with the real model, searched, explained and removed."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import pytest
from tables_scene import ARTICLES, catalogue

from instep.app import Instep
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.workshop import add_table, plan_table, remove_table
from instep.errors import Refused
from instep.settings import Settings

MODELS = Path(tempfile.gettempdir()) / f"instep-tests-{os.getuid()}" / "models"


class Silent:
    def event(self, name, fields): ...


def settings(dsn, directory, **flags):
    values = {"database_url": dsn, "data_dir": directory, "models_dir": MODELS, **flags}
    return Settings.load(values, environ={})


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
async def test_a_tables_life(conn, dsn, tmp_path, engine):
    """Marker words made at random go in by plain SQL: found after the run, gone after the update."""
    await conn.execute(ARTICLES)
    before = await catalogue(conn)
    options = TableOptions(
        "articles", ("title", "body"), where="published", filters=("section",), engine=engine
    )
    word, other = (f"zq{secrets.token_hex(4)}" for _ in range(2))
    await conn.execute(
        "insert into articles (title, body, section) values (%s, 'about gardens', 'a'), ('rain', 'weather in autumn', 'b')",
        (word,),
    )
    async with Instep.open(settings(dsn, tmp_path)) as app:
        planned = await plan_table(app, options)
        assert (planned.rows, planned.target) == (2, "all-MiniLM-L6-v2-chunked-256t-v1")
        assert not (await add_table(app, options)).already
        assert await plan_table(app, options) is None
        assert (await add_table(app, options)).already
        reports = await app.run(["articles"], observer=Silent())
        assert [(r.name, r.counters.indexed, r.exit_code) for r in reports] == [
            ("articles.embed", 2, 0),
            ("articles.search", 2, 0),
        ]
        found = await app.search("articles", word)
        assert found.results[0].key == (1,)
        assert (await app.search("articles", "autumn weather", mode="dense")).results[0].key == (2,)
        assert [r.key for r in (await app.search("articles", "gardens", where="section = 'b'")).results] in (
            [],
            [(2,)],
        )
        explained = await app.explain("articles.embed", "1")
        assert explained.in_sync
        assert explained.outputs == {
            "all-MiniLM-L6-v2-chunked-256t-v1": {"chunks": 1, "vectors": 1, "characters": len(word) + 15}
        }
        await conn.execute("update articles set title = %s where id = 1", (other,))
        assert not (await app.explain("articles.embed", "1")).in_sync
        assert not (await app.search("articles", word, mode="lexical")).results
        await app.run(["articles"], observer=Silent())
        assert not (await app.search("articles", word, mode="lexical")).results
        assert (await app.search("articles", other, mode="lexical")).results[0].key == (1,)
        await remove_table(app, "articles")
        assert await catalogue(conn) == before
        with pytest.raises(Refused, match="no source"):
            await app.run(["articles"], observer=Silent())


async def test_the_engine_of_words_by_the_settings(conn, dsn, tmp_path):
    """With a database of the user's own the index is PostgreSQL's, unless he says otherwise."""
    await conn.execute(ARTICLES)
    for number, (flags, expected) in enumerate([({}, "postgres"), ({"search_engine": "tantivy"}, "tantivy")]):
        await conn.execute(f"create table t{number} (id int primary key, body text)")
        async with Instep.open(settings(dsn, tmp_path, **flags)) as app:
            await add_table(app, TableOptions(f"t{number}", ("body",), engine="auto"))
            workshop = await app.workshop(f"t{number}")
            assert workshop.derivations[1].declaration.options["engine"] == expected
