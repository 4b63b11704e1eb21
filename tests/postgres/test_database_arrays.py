"""Packed arrays are what PostgreSQL reads back, and what psycopg's own adaptation gives."""

from __future__ import annotations

from uuid import UUID

import pytest

from instep.database.arrays import PackedArray

VALUES = {
    "smallint": [0, -1, 2**15 - 1, -(2**15)],
    "integer": [7, -(2**31), 2**31 - 1],
    "bigint": [2**31, -(2**63), 2**63 - 1],
    "uuid": [UUID(int=0), UUID(int=2**128 - 1), UUID("6fa459ea-ee8a-3ca4-894e-db77e160355e")],
    "bytea": [b"\0" * 32, bytes(range(32))],
}


@pytest.mark.parametrize("type", VALUES)
@pytest.mark.parametrize("count", [0, 1, None])
async def test_elements_arrive(conn, type, count):
    values = VALUES[type][:count]
    row = await (await conn.execute(f"select %s::{type}[]", (PackedArray(type, values),))).fetchone()
    assert row == (values,)


async def test_bytes_of_unequal_length(conn):
    values = [b"", b"a", b"abc"]
    row = await (await conn.execute("select %s::bytea[]", (PackedArray("bytea", values),))).fetchone()
    assert row == (values,)


async def test_places_of_rows(conn):
    await conn.execute("create table t as select generate_series(1, 1000) as n")
    places = [r[0] for r in await (await conn.execute("select ctid from t", binary=True)).fetchall()]
    row = await (
        await conn.execute(
            "select count(*) from t where ctid = any(%s::tid[])", (PackedArray("tid", places),)
        )
    ).fetchone()
    assert row == (1000,)


@pytest.mark.parametrize("type", ["smallint", "integer", "bigint"])
async def test_a_key_that_its_type_does_not_hold(conn, type):
    with pytest.raises(OverflowError):
        await conn.execute(f"select %s::{type}[]", (PackedArray(type, [max(VALUES[type]) + 1]),))
