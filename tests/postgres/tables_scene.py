"""Adding tables in tests: a model that counts, and a picture of everything that a refusal must leave alone."""

from __future__ import annotations

from typing import Any

from embedding_scene import CountingModel

from instep.catalogues.tables.declare import Declared, declare
from instep.catalogues.tables.model import EmbeddingModel
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.tables import Added, add

ARTICLES = """create table articles (id bigint generated always as identity primary key, title text, body text,
    published boolean not null default true, published_at timestamptz, price numeric, tags text[], raw bytea,
    section text, meta jsonb, born date)"""


def model(dimensions: int = 8) -> EmbeddingModel:
    return EmbeddingModel(CountingModel(dimensions), "tei")


async def declared(conn: Any, model_dimensions: int = 8, **options: Any) -> Declared:
    values = {"table": "articles", "text": ("title", "body"), **options}
    return await declare(conn, TableOptions(**values), model(model_dimensions))


async def added(conn: Any, **options: Any) -> Added:
    return await add(conn, await declared(conn, **options))


async def catalogue(conn: Any) -> dict[str, list[Any]]:
    """Everything that a session could have left: relations, columns, triggers, functions, schemas, our own rows."""
    queries = {
        "relations": "select oid::int, relname, relnamespace::regnamespace::text, relkind::text from pg_class where oid >= 16384 order by 1",
        "columns": "select attrelid::int, attname, attnum from pg_attribute where attrelid >= 16384 order by 1, 3",
        "triggers": "select tgname, tgrelid::int from pg_trigger order by oid",
        "functions": "select oid::int, proname from pg_proc where oid >= 16384 order by 1",
        "schemas": "select nspname from pg_namespace order by 1",
        "constraints": "select oid::int, conname from pg_constraint where oid >= 16384 order by 1",
        "types": "select oid::int, typname from pg_type where oid >= 16384 order by 1",
        "sources": "select * from instep.source",
        "derivations": "select * from instep.derivation",
        "targets": "select * from instep.target",
        "markers": "select * from instep.marker",
    }
    return {name: await (await conn.execute(query)).fetchall() for name, query in queries.items()}
