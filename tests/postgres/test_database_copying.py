"""What goes in by binary COPY comes out as it was, of every type that an output has."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from pgvector.psycopg import register_vector_async
from psycopg import sql

from instep.database.copying import copy_rows, pack_rows

TYPES = {
    "smallint": [-1, None, 32767],
    "integer": [0, None, -(2**31)],
    "bigint": [2**63 - 1, None, -1],
    "double precision": [0.1, None, float("-inf")],
    "boolean": [True, None, False],
    "bytea": [b"", None, bytes(range(256))],
    "text": ["", None, "naïve 漢字 🦉\n\\N\t"],
    "uuid": [UUID(int=1), None, UUID(int=2**128 - 1)],
    "integer[]": [[], None, [1, 2, 3]],
    "bytea[]": [[], None, [b"", b"\x00\xff", None]],
    "text[]": [[], None, ["a", None, "ü"]],
    # psycopg's adapters take over for the whole table:
    "timestamptz": [datetime(2026, 1, 2, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)],
}


@pytest.fixture
async def vectors(conn: psycopg.AsyncConnection) -> psycopg.AsyncConnection:
    await register_vector_async(conn)
    await conn.execute("set timezone = 'UTC'")
    return conn


async def fetch(conn: psycopg.AsyncConnection, query: str) -> list[tuple]:
    return await (await conn.execute(query)).fetchall()


@pytest.mark.versions
@pytest.mark.parametrize("name", TYPES)
async def test_each_type_comes_back_as_it_was(vectors: psycopg.AsyncConnection, name: str) -> None:
    await vectors.execute(f"create table t (id integer, value {name})")
    rows = list(enumerate(TYPES[name]))
    assert await copy_rows(vectors, sql.Identifier("t"), ["id", "value"], ["integer", name], rows) == 3
    assert await fetch(vectors, "select id, value from t order by id") == rows


@pytest.mark.versions
@pytest.mark.parametrize(("name", "exact"), [("vector", np.float32), ("halfvec", np.float16)])
async def test_vectors_come_back_bit_for_bit(
    vectors: psycopg.AsyncConnection, name: str, exact: type
) -> None:
    await vectors.execute(
        f'create schema "odd ""name"; create table "odd ""name".t (v {name}(384), "Key" bigint)'
    )
    sent = np.random.default_rng(7).standard_normal((500, 384)).astype(np.float32)
    rows = [(row, number) for number, row in enumerate(sent)] + [(None, 500)]
    table = sql.Identifier('odd "name', "t")
    assert await copy_rows(vectors, table, ["v", "Key"], [name, "bigint"], iter(rows)) == 501
    found = await fetch(vectors, 'select v::real[], v from "odd ""name".t order by "Key"')
    assert (np.array([row[0] for row in found[:500]], np.float32) == sent.astype(exact)).all()
    assert found[500] == (None, None)
    assert isinstance(found[0][1], Vector) == (name == "vector")


async def test_nothing_sends_nothing(vectors: psycopg.AsyncConnection) -> None:
    assert await copy_rows(vectors, sql.Identifier("no_such_table"), ["a"], ["text"], []) == 0


async def test_a_refused_row_leaves_none(vectors: psycopg.AsyncConnection) -> None:
    await vectors.execute("create table t (v vector(3))")
    rows = [(np.ones(3, np.float32),), (np.full(3, np.nan, np.float32),)]
    with pytest.raises(psycopg.errors.DataException):
        await copy_rows(vectors, sql.Identifier("t"), ["v"], ["vector"], rows)
    assert await fetch(vectors, "select count(*) from t") == [(0,)]


def test_rows_and_types_must_agree() -> None:
    with pytest.raises(ValueError, match="2 types for rows of 1 values"):
        pack_rows(["bigint", "text"], [(1,)])
    with pytest.raises(ValueError, match="shorter"):
        pack_rows(["bigint", "text"], [(1, "a"), (2,)])
    with pytest.raises(ValueError, match=r"inhomogeneous|of one length"):
        pack_rows(["vector"], [(np.ones(3, np.float32),), (np.ones(4, np.float32),)])
