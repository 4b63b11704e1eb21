"""The rows that the pipeline is measured on, and how it is checked that vectors are right."""

from __future__ import annotations

import numpy as np
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, sql

from benchmarks.model import expected


async def create(dsn: str, rows: int, name: str = "docs") -> None:
    """`docs(id, title, body, posted)`: some 70 characters of text in each of `rows` rows."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create extension if not exists vector")
        table = sql.Identifier(name)
        await conn.execute(
            sql.SQL(
                "create table {} (id bigint primary key, title text, body text, posted timestamptz default now())"
            ).format(table)
        )
        await conn.execute(
            sql.SQL(
                "insert into {} select g, 'title ' || g, 'this is a short text about number ' || g || ' and gardens'"
                " from generate_series(1, {}) g"
            ).format(table, sql.Literal(rows))
        )
        await conn.execute(sql.SQL("vacuum analyze {}").format(table))


async def verify(dsn: str, rows: int, found: str) -> None:
    """`found` is a query for (id, the text as it was sent, its vector). Every document has exactly one vector, and
    it is the server's for that text, which holds the document's number. Raises AssertionError saying what is wrong."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await register_vector_async(conn)
        got = await (
            await conn.execute(
                sql.SQL("select id, sent, vector from ({}) f order by id").format(sql.SQL(found)), binary=True
            )
        ).fetchall()
        ids = [row[0] for row in got]
        if ids != list(range(1, rows + 1)):
            raise AssertionError(f"{len(ids)} vectors of {len(set(ids))} documents, {rows} were expected")
        strange = [
            row[0] for row in got if f"title {row[0]}" not in row[1] or f"number {row[0]} " not in row[1]
        ]
        if strange:
            raise AssertionError(
                f"the texts of {len(strange)} documents are not theirs, {strange[0]} among them"
            )
        vectors = np.stack(
            [np.asarray(row[2].to_numpy() if hasattr(row[2], "to_numpy") else row[2]) for row in got]
        )
        wrong = np.flatnonzero((vectors != expected([row[1] for row in got])).any(axis=1))
        if len(wrong):
            raise AssertionError(
                f"{len(wrong)} vectors are not the server's, of document {ids[wrong[0]]} among them"
            )


async def last_commit(dsn: str, table: str) -> float:
    """When the last row of `table` was committed, in seconds since the epoch (`track_commit_timestamp`)."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            sql.SQL("select extract(epoch from max(pg_xact_commit_timestamp(xmin)))::float8 from {}").format(
                sql.SQL(table)
            )
        )
        row = await cursor.fetchone()
        assert row is not None
        return float(row[0])
