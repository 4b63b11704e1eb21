"""Add, show and remove a table: all or nothing, idempotent, without a trace."""

from __future__ import annotations

import asyncio

import pytest
from embedding_scene import CountingModel
from tables_scene import ARTICLES, added, catalogue, declared

from instep.catalogues.tables.tables import listed, remove, shown
from instep.catalogues.tables.view import write_view
from instep.chunks.derivation import ChunkDerivation, making_of
from instep.database.transactions import transaction
from instep.engine.ports import Output
from instep.errors import Refused


async def rows(conn, statement, *parameters):
    return await (await conn.execute(statement, parameters or None)).fetchall()


async def fill(conn, name="articles"):
    """What a run does for the embedding derivation, in short."""
    table = await shown(conn, name)
    target = next(t for t in table.targets if t.derivation == table.embed.name)
    model = CountingModel(target.spec["dimensions"])
    derivation = ChunkDerivation(table.embed, lambda target: making_of(target, model))
    key = ", ".join(f'"{c.name}"' for c in table.source.key)
    keys = await rows(conn, f'select {key} from "{table.source.schema}"."{table.source.table}"')
    loaded = await derivation.load(conn, target, keys, {})
    outputs = await derivation.compute(target, loaded.items)
    assert all(isinstance(output, Output) for output in outputs)
    async with transaction(conn):
        await derivation.sink.write(conn, target, (), outputs)
    return keys


async def test_add_and_show(conn):
    await conn.execute(ARTICLES)
    done = await added(
        conn,
        where="published and section = 'x%'",
        newest="published_at",
        filters=("section", "price"),
        show=("meta", "section"),
        engine="postgres",
    )
    assert (done.name, done.already) == ("articles", False)
    (table,) = await listed(conn)
    assert table.as_dict() == (await shown(conn, "articles")).as_dict()
    description = table.as_dict()
    assert description["watched"] == {
        "articles.embed": ["title", "body", "published", "section", "published_at"],
        "articles.search": ["title", "body", "section", "price", "meta", "published", "published_at"],
    }
    assert (description["where"], description["newest"]) == ("published and section = 'x%'", "published_at")
    assert [(t["derivation"], t["name"], t["state"]) for t in description["targets"]] == [
        ("articles.embed", "counting-chunked-1000c-v1", "reading"),
        ("articles.search", "postgres-words-v1", "reading"),
    ]


async def test_the_view_shows_chunks_in_order(conn):
    await conn.execute('create table articles ("Key id" bigint primary key, text text)')
    await added(conn, text=("text",), splitter="100c")
    first, second = "The first paragraph stands here. " * 2, "A second one, and it is other. " * 2
    await conn.execute("insert into articles values (1, %s), (2, null)", (f"{first}\n\n{second}\n\n{first}",))
    await conn.execute("insert into articles values (3, 'short: one chunk')")
    await fill(conn)
    shown_rows = await rows(
        conn,
        'select "Key id", ordinal, start, "end", text, length(text_hash) from instep.articles_chunks order by 1, 2',
    )
    assert shown_rows.pop() == (3, 0, 0, 16, "short: one chunk", 32)
    assert [row[1] for row in shown_rows] == [0, 1, 2]
    assert [row[4] for row in shown_rows] == [first.strip(), second.strip(), first.strip()]
    whole = f"{first}\n\n{second}\n\n{first}"
    assert all(whole[start:end] == text for _, _, start, end, text, _ in shown_rows)
    assert {row[5] for row in shown_rows} == {32}


async def test_key_columns_called_like_ours(conn):
    await conn.execute('create table articles (text text, "end" int, body text, primary key (text, "end"))')
    await added(conn, text=("body",))
    await conn.execute("insert into articles values ('k', 1, 'the body')")
    await fill(conn)
    assert await rows(
        conn, 'select text, "end", ordinal, chunk_text, chunk_end from instep.articles_chunks'
    ) == [("k", 1, 0, "the body", 8)]


async def test_the_view_never_holds_up_the_users_changes(conn):
    """No ALTER TABLE of his fails because of us, and the view goes on (decision 0003)."""
    await conn.execute(ARTICLES)
    await added(conn)
    await conn.execute("insert into articles (title) values ('t')")
    await fill(conn)
    await conn.execute("alter table articles alter column published type text using 'x'")
    await conn.execute("alter table articles drop column section, alter column id type integer")
    await conn.execute("alter table articles rename column id to number")
    await conn.execute("alter table articles rename to other")
    assert await rows(conn, "select id, text from instep.articles_chunks") == [(1, "t")]
    await conn.execute("drop table other cascade")
    assert await rows(conn, "select id, text from instep.articles_chunks") == [(1, "t")]


async def test_added_twice_is_added_once(conn):
    await conn.execute(ARTICLES)
    await added(conn, where="published")
    before = await catalogue(conn)
    again = await added(conn, where="published")
    assert again.already
    assert {
        k: v
        for k, v in (await catalogue(conn)).items()
        if k not in ("functions", "relations", "columns", "types")
    } == {k: v for k, v in before.items() if k not in ("functions", "relations", "columns", "types")}


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"where": "published"}, "--where is true, not published"),
        ({"text": ("title",)}, "--text is title,body, not title"),
        ({"filters": ("section",)}, "--filters is nothing, not section"),
        ({"engine": "postgres"}, "--engine is tantivy, not postgres"),
        ({"splitter": "500c"}, "the target is counting-chunked-1000c-v1, not counting-chunked-500c-v1"),
    ],
)
async def test_added_otherwise_is_refused(conn, options, difference):
    await conn.execute(ARTICLES)
    await added(conn)
    before = await catalogue(conn)
    with pytest.raises(Refused, match="already added, otherwise") as raised:
        await added(conn, **options)
    assert difference in str(raised.value)
    assert "instep tables" in raised.value.hint
    assert await catalogue(conn) == before


async def test_remove_leaves_no_trace(conn):
    await conn.execute(ARTICLES)
    before = await catalogue(conn)
    await added(conn, filters=("section",))
    await conn.execute("insert into articles (title) values ('kept')")
    await fill(conn)
    await remove(conn, "articles")
    assert await catalogue(conn) == before
    assert await rows(conn, "select title from articles") == [("kept",)]
    with pytest.raises(Refused, match="no table 'articles'"):
        await remove(conn, "articles")


async def test_remove_again_after_it_broke_off(conn):
    """The engine's part is gone, the chunk tables are still there: a second removal finishes."""
    from instep.engine import install

    await conn.execute(ARTICLES)
    before = await catalogue(conn)
    await added(conn)
    await install.remove(conn, "articles")
    await remove(conn, "articles")
    assert await catalogue(conn) == before


async def test_remove_under_something_of_the_users_is_refused_whole(conn):
    await conn.execute(ARTICLES)
    await added(conn)
    await conn.execute("create view mine as select text from instep.articles_chunks")
    before = await catalogue(conn)
    with pytest.raises(Refused, match=r"stands on what is to be removed.*view mine"):
        await remove(conn, "articles")
    assert await catalogue(conn) == before


async def test_a_failure_after_the_install_takes_it_back(conn, monkeypatch):
    from instep.catalogues.tables import tables

    async def broken(*_):
        raise Refused("no more")

    await conn.execute(ARTICLES)
    before = await catalogue(conn)
    monkeypatch.setattr(tables, "write_view", broken)
    with pytest.raises(Refused, match="no more"):
        await added(conn)
    assert await catalogue(conn) == before


async def test_the_view_changes_over_to_another_target(conn):
    """Promotion: another model, another dimension, the same view."""
    from dataclasses import replace

    from instep.chunks.sink import ChunkSink

    await conn.execute(ARTICLES)
    await added(conn)
    table = await shown(conn, "articles")
    other = replace(table.targets[0], id=77, spec={**table.targets[0].spec, "dimensions": 16})
    await ChunkSink(table.embed).prepare(conn, other)
    async with transaction(conn):
        await write_view(conn, table.embed, other)
    assert await rows(
        conn,
        "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'instep.articles_chunks'::regclass and attname = 'vector'",
    ) == [("vector(16)",)]


async def test_two_processes_add_at_once(dsn, conn):
    import psycopg

    await conn.execute(ARTICLES)
    others = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(2)]
    await asyncio.gather(*(added(other) for other in others))
    for other in others:
        await other.close()
    assert len(await listed(conn)) == 1
    assert await rows(conn, "select count(*) from instep.articles_chunks") == [(0,)]


ODD = '"Other Schema"."Odd %s ""Table"""'


async def test_composite_and_quoted(conn):
    await conn.execute('create schema "Other Schema"')
    await conn.execute(
        f'create table {ODD} (a uuid, "B %" text, "the ""text""" text, primary key (a, "B %"))'
    )
    done = await added(conn, table=ODD, text=('the "text"',), where="\"B %\" like 'x%'")
    assert done.name == "odd_s_table"
    await conn.execute(
        f"insert into {ODD} values (gen_random_uuid(), 'x\"', 'one'), (gen_random_uuid(), 'y', 'no')"
    )
    table = await shown(conn, "odd_s_table")
    assert table.embed.watch == ('the "text"', "B %")
    model = CountingModel()
    derivation = ChunkDerivation(table.embed, lambda target: making_of(target, model))
    keys = await rows(conn, f'select a, "B %" from {ODD}')
    loaded = await derivation.load(conn, table.targets[0], keys, {})
    assert [list(item.content.texts.values()) for item in loaded.items] == [["one"]]


async def test_names(conn):
    await conn.execute(f"create table {'n' * 40} (id int primary key, body text)")
    with pytest.raises(Refused, match="makes no name") as raised:
        await declared(conn, table="n" * 40, text=("body",))
    assert raised.value.hint == "Give one with --name."
    assert (await declared(conn, table="n" * 40, text=("body",), name="short")).source.name == "short"
    with pytest.raises(Refused, match="cannot be used"):
        await declared(conn, table="n" * 40, text=("body",), name="Not Good")
    longest = "m" * 33
    done = await added(conn, table="n" * 40, text=("body",), name=longest)
    assert done.name == longest
    await conn.execute("insert into " + "n" * 40 + " values (1, 'text')")
    await fill(conn, longest)
    assert await rows(conn, f"select text from instep.{longest}_chunks") == [("text",)]
