"""A transaction that opens in one round trip, with its settings, also behind PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import AsyncConnection, Error
from psycopg.generators import copy_end
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

WORKER = "synchronous_commit = off"
"""Loses nothing: output, stamp and the entry's removal are one transaction (PLATFORM.md, docs/concepts.md)."""

INDEX_ONLY = ("enable_seqscan = off", "enable_bitmapscan = off", "enable_sort = off")
"""For claim, lock and absorb: with stale statistics 460 and 1,400 ms became 5 and 1 ms. Never for the sweep."""


@asynccontextmanager
async def transaction(conn: AsyncConnection[TupleRow], *settings: str) -> AsyncIterator[None]:
    """READ COMMITTED, whatever the database's default (REPEATABLE READ breaks absorb and commit), with
    `settings` ("name = value", ours, never a user's) for this transaction alone. `conn` is in autocommit mode."""
    opening = ["begin isolation level read committed", *(f"set local {setting}" for setting in settings)]
    try:
        await conn.execute("; ".join(opening).encode())
        yield
        await conn.execute(b"commit")
    except BaseException:
        await _take_back(conn)
        raise


async def _take_back(conn: AsyncConnection[TupleRow]) -> None:
    """Roll back, whatever was under way. A cancellation that comes as a COPY begins leaves psycopg's connection in the
    midst of it: nothing else can be sent then, a rollback neither, and the locks would stay
    (test_database_transactions.py)."""
    if conn.info.transaction_status is TransactionStatus.ACTIVE:
        try:
            await conn.wait(copy_end(conn.pgconn, b"cancelled"))
        except Error:  # the COPY's own: that it was cancelled
            if conn.info.transaction_status is TransactionStatus.ACTIVE:
                await conn.close()  # the server rolls back
    if conn.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
        await conn.execute(b"rollback")
