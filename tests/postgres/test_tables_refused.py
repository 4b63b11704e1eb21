"""What cannot be kept in step is refused with its sentence and the next step, and leaves the database as it was."""

from __future__ import annotations

import psycopg
import pytest
from tables_scene import ARTICLES, added, catalogue, declared

from instep.errors import Refused

OTHERS = """
create table keyless (body text);
create table keyless_with_id (id int, body text);
create table dated (d date primary key, body text);
create view seen as select * from articles;
create materialized view kept as select * from articles;
create extension file_fdw;
create server files foreign data wrapper file_fdw;
create foreign table foreigners (id int, body text) server files options (filename '/dev/null');
create table parts (id int primary key, body text) partition by range (id);
create table part_one partition of parts for values from (1) to (10);
create table virtual (id int primary key, body text, low text generated always as (lower(body)) virtual);
create sequence counting;
create table other (id int primary key, body text);
create function slow(text) returns boolean language plpgsql volatile as 'begin return true; end';
"""

REFUSALS = [
    ({"table": "article"}, "There is no table 'article'", "Did you mean articles"),
    ({"table": "no such table"}, "There is no table 'no such table'", None),
    (
        {"table": "keyless"},
        "public.keyless has no key",
        "alter table public.keyless add column id bigint generated always as identity primary key;",
    ),
    ({"table": "keyless_with_id"}, "has no key", "add column row_id bigint"),
    (
        {"table": "dated"},
        "key column d of public.dated is of type date",
        "alter table public.dated add column id bigint",
    ),
    ({"table": "seen"}, "public.seen is a view", "the table behind it"),
    ({"table": "kept"}, "is a materialized view", "the table behind it"),
    ({"table": "foreigners"}, "is a foreign table", "on that server"),
    ({"table": "part_one"}, "is a partition", "the partitioned table itself"),
    ({"table": "counting"}, "is a sequence", None),
    ({"table": "pg_catalog.pg_class"}, "belongs to PostgreSQL", None),
    ({"table": "instep.run"}, "belongs to instep itself", None),
    ({"table": "virtual", "text": ("low",)}, "virtual.low is a virtual generated column", "STORED"),
    ({"text": ("titel",)}, "has no column 'titel'", "Did you mean title"),
    ({"text": ()}, "--text is empty", "--text title,body,section,meta"),
    ({"text": ("title", "title")}, "names a column twice", None),
    ({"text": ("raw",)}, "is of type bytea: bytes are no text", "convert_from"),
    (
        {"text": ("born",)},
        "is of type date: its text depends on the session's settings",
        "as text in a column",
    ),
    ({"text": ("published_at",)}, "timestamp with time zone: its text depends", "as text in a column"),
    ({"text": ("tags",)}, "is of type text[], which has no one text", "as text in a column"),
    ({"newest": "title"}, "--newest takes a date or timestamp", "published_at or born"),
    ({"newest": "publised_at"}, "has no column 'publised_at'", "published_at"),
    ({"filters": ("raw",)}, "'raw' is of type bytea, which a filter cannot use", "filters take"),
    ({"filters": ("secton",)}, "has no column 'secton'", "section"),
    ({"show": ("nothing",)}, "has no column 'nothing'", None),
    ({"engine": "lucene"}, "--engine is 'lucene'", None),
    ({"splitter": "256t"}, "the tokenizer of this model is not at hand", "1000c"),
    ({"dimensions": 99}, "--dimensions is 99; the model counting gives 8", None),
    # conditions
    ({"where": "  "}, "--where is empty", None),
    ({"where": "published and"}, "refused by PostgreSQL: syntax error", "--where 'published'"),
    ({"where": "publishd"}, 'column "publishd" does not exist', "Did you mean published"),
    ({"where": "nope(title)"}, "function nope(text) does not exist", None),
    ({"where": "title"}, "neither true nor false", "--where 'published'"),
    ({"where": "price = 'x'"}, 'invalid input syntax for type numeric: "x"', None),
    ({"where": "published_at < now()"}, "uses now(), whose answer can change", "in a column"),
    ({"where": "published_at < current_timestamp"}, "uses current_timestamp, whose answer", "in a column"),
    ({"where": "born > current_date - 7"}, "uses current_date", "in a column"),
    ({"where": "random() < 0.5"}, "uses random()", "in a column"),
    ({"where": "slow(title)"}, "uses slow()", "in a column"),
    (
        {"where": "published_at::date = '2026-01-01'"},
        "a function or cast whose answer can change",
        "in a column",
    ),
    ({"where": "published_at < 'now'"}, "reads 'now'", "in a column"),
    ({"where": "born = ' Today '"}, "reads ' Today '", "in a column"),
    ({"where": "id in (select id from other)"}, "holds a subquery", "in a column"),
    ({"where": "exists (select 1 from other)"}, "holds a subquery", None),
    ({"where": "count(*) > 1"}, "aggregate functions are not allowed", None),
    ({"where": "row_number() over () = 1"}, "window functions are not allowed", None),
    ({"where": "true) is true), ((true"}, "is not one expression", None),
    ({"where": "true; drop table articles"}, "syntax error", None),
    ({"where": "true) is true)) where (((true"}, "is not one expression", None),
    ({"where": "a\0b"}, "NUL", None),
]


@pytest.fixture(scope="module")
def refusing_dsn(server_dsn, template):
    """One database for all refusals: each must leave it as it was, so they can share it."""
    name = f"{template}_refusals"
    make = psycopg.conninfo.make_conninfo
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(f"drop database if exists {name} with (force)")
        conn.execute(f"create database {name} template {template}")
    with psycopg.connect(make(server_dsn, dbname=name), autocommit=True) as conn:
        conn.execute(ARTICLES + ";" + OTHERS)
    yield make(server_dsn, dbname=name)
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(f"drop database if exists {name} with (force)")


@pytest.mark.parametrize(("options", "sentence", "step"), REFUSALS)
async def test_refused(refusing_dsn, options, sentence, step):
    async with await psycopg.AsyncConnection.connect(refusing_dsn, autocommit=True) as conn:
        before = await catalogue(conn)
        defaults = {} if options.get("table", "articles") in ("articles",) else {"text": ("body",)}
        with pytest.raises(Refused) as raised:
            await added(conn, **{**defaults, **options})
        assert sentence in str(raised.value)
        if step is not None:
            assert step in (raised.value.hint or "")
        assert await catalogue(conn) == before


@pytest.mark.parametrize(
    ("condition", "columns"),
    [
        ("published", ("published",)),
        ("published -- with a comment", ("published",)),
        ("lower(title) like 'a%' and price < 10.5", ("title", "price")),
        ("meta ->> 'kind' = 'x' or 'a' = any(tags)", ("tags", "meta")),
        ("published_at < '2026-01-01 00:00+00'", ("published_at",)),
        ("section = 'now' and title <> 'today'", ("title", "section")),
        ("true", ()),
        ("(published) is not null and \"section\" ~ '%s %(x)s {y}'", ("published", "section")),
    ],
)
async def test_conditions_that_are_taken(refusing_dsn, condition, columns):
    async with await psycopg.AsyncConnection.connect(refusing_dsn, autocommit=True) as conn:
        found = await declared(conn, text=("body",), where=condition)
        assert set(found.embed.watch) == {"body", *columns}
        assert found.embed.eligible == condition


async def test_temporary_tables_are_refused(conn):
    await conn.execute("create temporary table articles (id int primary key, title text, body text)")
    with pytest.raises(Refused, match="is a temporary table"):
        await declared(conn)


async def test_row_level_security_that_hides_rows(conn):
    await conn.execute(ARTICLES)
    await conn.execute(
        "alter table articles enable row level security; drop role if exists instep_reader; create role instep_reader; "
        "grant select on articles to instep_reader; grant usage on schema instep to instep_reader; "
        "grant select on all tables in schema instep to instep_reader"
    )
    assert (await declared(conn)).source.name == "articles"  # a superuser bypasses it
    await conn.execute("set role instep_reader")
    with pytest.raises(Refused, match=r"Row-level security of public\.articles hides rows") as raised:
        await declared(conn)
    assert "bypassrls" in raised.value.hint
    await conn.execute("reset role; drop owned by instep_reader; drop role instep_reader")


async def test_vectors_over_the_limits(conn):
    await conn.execute(ARTICLES)
    with pytest.raises(Refused, match="4,001 dimensions cannot be indexed"):
        await declared(conn, model_dimensions=4001)
    assert (await declared(conn, model_dimensions=2001)).embed_target.spec["type"] == "halfvec"
    found = await declared(conn, halfvec=True, document_prefix="passage: ")
    assert found.embed_target.name == "counting-chunked-1000c-v1-prefix-passage-halfvec"


async def test_name_of_another_table(conn):
    await conn.execute(ARTICLES)
    await conn.execute(
        "create schema other; create table other.articles (id int primary key, title text, body text)"
    )
    await added(conn)
    with pytest.raises(Refused, match="belongs to another table") as raised:
        await declared(conn, table="other.articles")
    assert "--name" in raised.value.hint
    with pytest.raises(Refused, match="is already added, as articles"):
        await declared(conn, name="second")
    assert (await added(conn, table="other.articles", name="other_articles")).name == "other_articles"
