"""A transaction that is cancelled, wherever that comes, leaves its connection fit for the next, and no lock."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from instep.database.transactions import transaction
from instep.testing.proxy import Proxy

LATENCY = 0.1  # seconds each way: an answer is under way for as long


async def locks_and_copies(conn: Any) -> None:
    async with transaction(conn):
        await conn.execute("select from t where id = 1 for update")
        async with conn.cursor() as cursor, cursor.copy("copy t (id) from stdin") as copy:
            await copy.write(b"2\n")


async def begun(conn: Any, text: str) -> None:
    """Until the server has this statement."""
    while True:
        rows = await conn.execute(
            "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query like %s",
            [text],
        )
        if await rows.fetchone():
            return
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("at", ["begin%", "select from t%", "copy t%", "commit%"])
async def test_cancelled_while_the_answer_is_under_way(dsn: str, conn: Any, at: str) -> None:
    """`copy`: a SIGTERM there left what the wave had locked to its lease, and the release waited ten seconds for it."""
    await conn.execute("create table t (id bigint primary key)")
    await conn.execute("insert into t values (1)")
    async with Proxy(dsn) as proxy, await psycopg.AsyncConnection.connect(proxy.dsn, autocommit=True) as own:
        proxy.delay = LATENCY
        work = asyncio.create_task(locks_and_copies(own))
        await begun(conn, at)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 20)
        assert own.info.transaction_status is TransactionStatus.IDLE
        await conn.execute("set lock_timeout = '2s'")
        await conn.execute("update t set id = 1 where id = 1")
        async with transaction(own):
            await own.execute("select 1")
