"""Loading and computing search documents: one snapshot, bounded memory, every kind of column and key."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pytest
from search_scene import SearchScene

from instep.engine.declaration import KeyColumn, Source
from instep.engine.ports import Item, Output
from instep.errors import Outage, Refused
from instep.search.columns import read_columns
from instep.search.derivation import SearchDerivation, target_name


async def test_eligible_rows_alone_with_the_hash_that_the_source_has(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    await scene.insert(1, "<p>red <b>apricot</b></p>", section="games", price=Decimal("9.99"))
    await scene.insert(2, "closed", open=False)
    derivation, target = scene.lexical, scene.targets["articles.search"]
    loaded = await derivation.load(conn, target, [(2,), (1,), (3,)], {})
    (item,) = loaded.items
    assert (item.key, list(loaded.deferred)) == ((1,), [])
    (hash,) = await (
        await conn.execute(f"select {derivation.declaration.hash} from articles where id = 1")
    ).fetchone()
    assert item.hash == hash
    (output,) = await derivation.compute(target, loaded.items)
    assert isinstance(output, Output)
    assert output.hash == hash
    assert output.value.words == "red apricot"
    assert output.value.fields["section"] == "games"
    assert output.value.fields["price"] == 9.99
    stamped = await derivation.load(conn, target, [(1,)], {(1,): hash})
    assert stamped.items == [Item((1,), hash, None)]
    await conn.execute("update articles set section = 'net' where id = 1")  # a filter column is content too
    changed = await derivation.load(conn, target, [(1,)], {(1,): hash})
    assert changed.items[0].content is not None
    assert changed.items[0].hash != hash


async def test_what_does_not_fit_is_deferred_but_for_the_first(dsn, conn, tmp_path):
    scene = await SearchScene.make(dsn, conn, tmp_path)
    for n in range(5):
        await scene.insert(n, "x" * 1000)
    target = scene.targets["articles.search"]
    derivation = SearchDerivation(
        scene.lexical.declaration, scene.lexical.sink, scene.columns, content_bytes=2500
    )
    loaded = await derivation.load(conn, target, [(4,), (0,), (1,), (2,), (3,)], {})
    assert [item.key for item in loaded.items] == [(4,), (0,)]
    assert set(loaded.deferred) == {(1,), (2,), (3,)}
    derivation = SearchDerivation(
        scene.lexical.declaration, scene.lexical.sink, scene.columns, content_bytes=10
    )
    loaded = await derivation.load(conn, target, [(2,), (3,)], {})
    assert [item.key for item in loaded.items] == [(2,)]
    assert list(loaded.deferred) == [(3,)]


async def test_extremes_of_every_kind_are_indexed(dsn, conn, tmp_path):
    scene = await SearchScene.make(
        dsn, conn, tmp_path, "tantivy", table=EXTREMES, filters=("n", "f", "d", "t", "z", "a")
    )
    await conn.execute(
        "insert into articles (id, title, n, f, d, t, z, a) values"
        " (1, 'word', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity', '{}'),"
        " (2, 'word', -1e600, '-infinity', '-infinity', '-infinity', '-infinity', '{null,x}'),"
        " (3, 'word', 1e600, 'infinity', '5874897-12-31', '294276-12-31', '294276-12-31', '{\"\"}'),"
        " (4, null, null, null, '4713-01-01 BC', '4713-01-01 BC', '4713-01-01 BC', null)"
    )
    await scene.work((1,), (2,), (3,), (4,))
    answer = await scene.search("word", facets=True)
    assert {result.key for result in answer.results} == {(1,), (2,), (3,)}
    assert {facet.value for facet in answer.facets["z"]} == {"infinity", "-infinity"}
    assert {facet.value for facet in answer.facets["a"]} == {"", "x"}
    assert await scene.found("word", where="z > '2024-01-01' and 'x' = any(a)") == []
    assert await scene.found("word", where="z < '2024-01-01' and 'x' = any(a)") == [2]
    assert await scene.found("word", where="n > 5 and d > '2024-01-01'", limit=5) in ([1, 3], [3, 1])


EXTREMES = """create table articles (id bigint primary key, title text, body text, "open" boolean default true,
section text, price numeric, at timestamptz, n numeric, f real, d date, t timestamp, z timestamptz, a text[])"""


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
@pytest.mark.parametrize("kind", ["uuid", "text", "composite"])
async def test_keys_of_other_types_and_odd_names(dsn, conn, tmp_path, engine, kind):
    columns = {
        "uuid": [KeyColumn("the Key", "uuid")],
        "text": [KeyColumn("key_1", "text")],
        "composite": [
            KeyColumn("target", "integer"),
            KeyColumn("Key", "character varying(20)"),
            KeyColumn("u", "uuid"),
        ],
    }[kind]
    key = {"uuid": (uuid.uuid4(),), "text": ('it\'s "a" % \\ 文',), "composite": (7, "b'", uuid.uuid4())}[
        kind
    ]
    names = ", ".join(f'"{column.name}"' for column in columns)
    table = (
        f"create table articles ({', '.join(f'{chr(34)}{c.name}{chr(34)} {c.type}' for c in columns)}, title text,"
        f' body text, "open" boolean default true, section text, price numeric, at timestamptz, "100%s" text,'
        f" primary key ({names}))"
    )
    scene = await SearchScene.make(
        dsn, conn, tmp_path, engine, table=table, key=columns, filters=["section", "100%s"]
    )
    await conn.execute(
        f"insert into articles ({names}, title, section, \"100%%s\") values ({', '.join(['%s'] * len(key))}, 'apricot', 's', 'x')",
        key,
    )
    await scene.work(key)
    for mode in ("lexical", "dense", "hybrid"):
        (result,) = (
            await scene.search("apricot", mode, where="\"100%s\" = 'x' and section like '%s'")
        ).results
        assert result.key == key
        assert result.fields == {"section": "s", "price": None, "at": None}
    await conn.execute("update articles set title = 'other'")
    assert (await scene.search("apricot")).results == []


async def test_columns_that_cannot_be_filtered(dsn, conn, tmp_path):
    await conn.execute(
        "create domain email as text; create table t (id int primary key, j jsonb, e email, c character(4), v varchar(9)[])"
    )
    (oid,) = await (await conn.execute("select 't'::regclass::oid")).fetchone()
    source = Source("t", oid, "public", "t", (KeyColumn("id", "integer"),))
    kinds = [(c.kind, c.type) for c in await read_columns(conn, source, ["e", "c", "v", "id"])]
    assert kinds == [
        ("text", "text"),
        ("text", "character"),
        ("texts", "character varying[]"),
        ("integer", "integer"),
    ]
    with pytest.raises(Refused, match="column 'j' is of type jsonb"):
        await read_columns(conn, source, ["j"])
    with pytest.raises(Refused, match="no column 'x'"):
        await read_columns(conn, source, ["x"])


async def test_the_probe_fails_where_no_write_can_succeed(dsn, conn, tmp_path):
    """So that a held or lost index is an outage, and no row's failure."""
    scene = await SearchScene.make(dsn, conn, tmp_path, "tantivy")
    target = scene.targets["articles.search"]
    await scene.lexical.probe(target)
    stranger = SearchDerivation(scene.lexical.declaration, _fresh(scene), scene.columns)
    with pytest.raises(Outage, match="is held by process"):
        await stranger.probe(target)
    await scene.lexical.sink.close()
    await stranger.probe(target)
    assert target_name("tantivy").startswith("tantivy-")


def _fresh(scene):
    from instep.search.sinks import TantivySink

    return TantivySink(scene.directory, scene.lexical.declaration, scene.columns, scene.connect)
