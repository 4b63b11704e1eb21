"""A table is found by the name as people write it, and its facts are told."""

from __future__ import annotations

import pytest

from instep.engine.relations import inspect
from instep.errors import Refused


async def test_names_are_read_as_postgresql_reads_them(conn):
    await conn.execute(
        'create schema other; create table articles (id int primary key); create table "Odd.Name" (id int)'
    )
    await conn.execute('create table other.articles (id int primary key); create table other."a.b" (id int)')
    names = {
        "articles": ("public", "articles"),
        "ARTICLES": ("public", "articles"),
        "other.articles": ("other", "articles"),
        '"Odd.Name"': ("public", "Odd.Name"),
        'other."a.b"': ("other", "a.b"),
    }
    for text, found in names.items():
        relation = await inspect(conn, text)
        assert (relation.schema, relation.table) == found


@pytest.mark.parametrize(("text", "hint"), [("artikles", "articles"), ("a.b.c.d", "schema.table")])
async def test_unknown_names_are_refused_with_near_ones(conn, text, hint):
    await conn.execute("create table articles (id int primary key)")
    with pytest.raises(Refused) as refused:
        await inspect(conn, text)
    assert hint in (refused.value.hint or "")


async def test_unknown_columns_are_refused_with_near_ones(conn):
    await conn.execute("create table articles (id int primary key, title text)")
    relation = await inspect(conn, "articles")
    assert relation.column("title").type == "text"
    with pytest.raises(Refused) as refused:
        relation.column("titel")
    assert "title" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id int primary key", [("id", "integer")]),
        ('a text collate "C", b varchar(9), primary key (b, a)', [("b", "character varying"), ("a", "text")]),
        ("id uuid not null unique", [("id", "uuid")]),
        ("id uuid unique", None),  # may be null
        ("id positive primary key", [("id", "integer")]),  # a domain
        ("at timestamptz primary key", None),
        ("at timestamptz primary key, id int not null unique", [("id", "integer")]),
        ("id int", None),
    ],
)
async def test_the_key_is_found(conn, columns, key):
    await conn.execute("create domain positive as int check (value > 0)")
    await conn.execute(f"create table articles ({columns})")
    relation = await inspect(conn, "articles")
    assert (relation.key and [(c.name, c.type) for c in relation.key]) == key
    assert bool(relation.key_refusal) == (key is None)


async def test_partial_and_expression_indexes_are_no_keys(conn):
    await conn.execute(
        "create table articles (id int not null, t text not null); create unique index on articles (id) where id > 0; "
        "create unique index on articles (lower(t))"
    )
    assert (await inspect(conn, "articles")).key is None


async def test_collations_kinds_and_partitions_are_told(conn):
    await conn.execute(
        'create table a (id text collate "C" primary key, g int generated always as (length(id)) stored)'
    )
    await conn.execute("create view v as select * from a; create unlogged table u (id int primary key)")
    await conn.execute(
        "create table p (id int primary key) partition by range (id); "
        "create table p1 partition of p for values from (0) to (9) partition by range (id); "
        "create table p2 partition of p1 for values from (0) to (5)"
    )
    a = await inspect(conn, "a")
    assert a.key is not None
    assert a.key[0].collation == 'pg_catalog."C"'
    assert a.column("g").generated == "s"
    assert (await inspect(conn, "v")).kind == "view"
    assert (await inspect(conn, "u")).persistence == "u"
    p = await inspect(conn, "p")
    assert (p.kind, p.partitions) == ("partitioned table", ("public.p1", "public.p2"))
    assert (await inspect(conn, "p2")).is_partition


async def test_row_security_is_told_for_a_role_that_it_binds(conn):
    role = f"bound_{conn.info.dbname}"  # roles belong to the whole server
    await conn.execute(
        "create table a (id int primary key); alter table a enable row level security; "
        f"create role {role}; grant select on a to {role}"
    )
    assert not (await inspect(conn, "a")).rls
    await conn.execute(f"set role {role}")
    assert (await inspect(conn, "a")).rls
    await conn.execute(f"reset role; drop owned by {role}; drop role {role}")


async def test_the_row_estimate_reads_no_table_and_follows_growth(conn):
    await conn.execute("create table a (id int primary key) with (autovacuum_enabled = off)")
    await conn.execute("insert into a select generate_series(1, 1000); analyze a")
    assert (await inspect(conn, "a")).row_estimate == pytest.approx(1000, rel=0.1)
    await conn.execute("insert into a select generate_series(1001, 50000)")
    assert (await inspect(conn, "a")).row_estimate == pytest.approx(50000, rel=0.25)
