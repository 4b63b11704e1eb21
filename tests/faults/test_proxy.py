"""The proxy does what the tests that use it rely on."""

import asyncio
import time

import psycopg
import pytest

from instep.testing.proxy import Proxy


async def connect(proxy: Proxy) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(proxy.dsn, autocommit=True, connect_timeout=2)


async def one(conn: psycopg.AsyncConnection, statement: str) -> object:
    return (await (await conn.execute(statement)).fetchone())[0]


async def test_it_passes_on_and_counts(dsn: str) -> None:
    async with Proxy(dsn) as proxy, await connect(proxy) as conn:
        assert len(str(await one(conn, "select repeat('x', 300000)"))) == 300_000
        assert (proxy.connections, proxy.open, proxy.dropped) == (1, 1, 0)
        assert proxy.bytes_down > 300_000 > proxy.bytes_up > 0


async def test_delay_is_each_way(dsn: str) -> None:
    async with Proxy(dsn) as proxy, await connect(proxy) as conn:
        proxy.delay = 0.1
        began = time.monotonic()
        await one(conn, "select 1")
        assert time.monotonic() - began >= 0.2


async def test_close_ends_what_is_open_and_takes_new_ones(dsn: str) -> None:
    async with Proxy(dsn) as proxy, await connect(proxy) as conn:
        proxy.close()
        with pytest.raises(psycopg.OperationalError):
            await one(conn, "select 1")
        async with await connect(proxy) as again:
            assert await one(again, "select 1") == 1


async def test_a_black_hole_gives_no_word(dsn: str) -> None:
    async with Proxy(dsn) as proxy, await connect(proxy) as conn:
        proxy.drop = True
        asking = asyncio.ensure_future(one(conn, "select 1"))
        await asyncio.sleep(0.5)
        assert not asking.done()
        assert proxy.dropped > 0
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy)
        proxy.restore()
        with pytest.raises(psycopg.OperationalError):
            await asking
        async with await connect(proxy) as again:
            assert await one(again, "select 1") == 1


@pytest.mark.parametrize("forward", [True, False])
async def test_a_trap_takes_one_statement_or_its_answer_alone(dsn: str, conn, forward: bool) -> None:
    await conn.execute("create table seen (n integer)")
    async with Proxy(dsn) as proxy, await connect(proxy) as first, await connect(proxy) as second:
        sprung = proxy.trap(b"insert into seen", forward=forward, alone=True)
        asking = asyncio.ensure_future(first.execute("insert into seen values (1)"))
        await asyncio.wait_for(sprung.wait(), 10)
        assert await one(second, "select 2") == 2
        await asyncio.sleep(0.3)
        assert not asking.done()
        assert await one(second, "select count(*) from seen") == int(forward)
        proxy.restore()
        with pytest.raises(psycopg.OperationalError):
            await asking


async def test_a_server_that_is_gone_ends_the_clients_connection(dsn: str) -> None:
    async with Proxy("host=127.0.0.1 port=1 dbname=x") as proxy:
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy)
    async with Proxy(dsn) as proxy:
        async with await connect(proxy) as conn:
            with psycopg.connect(dsn, autocommit=True) as other:
                other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
                    " and datname = current_database()"
                )
            with pytest.raises(psycopg.OperationalError):
                await one(conn, "select 1")
        proxy.aim("host=127.0.0.1 port=1 dbname=x")
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy)
