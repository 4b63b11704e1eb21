"""Through a real PgBouncer in transaction mode (PEERS C6 72): whole runs, changes, workers that stay, several at once.

`pytest --pgbouncer tests/postgres` sends the whole suite through it (make torture)."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from database_scene import Scene, scene
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from instep.database.migrations import LOCK
from instep.database.pool import Database
from instep.errors import Refused
from instep.settings import Settings
from instep.testing.model_server import ModelServer
from pooler import PROGRAM, WHY_NOT, pgbouncer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)


@pytest.fixture
def pooled(dsn: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a pool of three server connections, fewer than a worker has."""
    with pgbouncer(dsn, tmp_path / "pooler", pool=3) as through:
        yield through


async def test_c6_72_whole_runs_go_through_pgbouncer(dsn: str, pooled: str, tmp_path: Path) -> None:
    """Found out by itself; migrations and the index build by the direct address."""
    async with scene(dsn, tmp_path, rows=1500, INSTEP_DIRECT_DATABASE_URL=dsn) as here:
        first = await here.run(dsn=pooled, batch_size=100)
        assert first.code == 0, first.err
        assert await here.in_step() == []
        built = await here.rows(
            "select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam"
            " where a.amname = 'hnsw'"
        )
        assert built == [(True,)]
        await here.rows("update notes set body = body || ' changed' where id % 3 = 0")
        await here.rows("delete from notes where id % 5 = 0")
        two = [await here.start("run", dsn=pooled, batch_size=50) for _ in range(2)]
        assert [await one.ended(60) for one in two] == [0, 0]
        assert await here.in_step() == []


async def test_c6_72_a_worker_that_stays_goes_through_pgbouncer_alone(
    dsn: str, pooled: str, tmp_path: Path
) -> None:
    """With no direct address at all: everything goes through it."""
    async with scene(dsn, tmp_path, rows=300) as here:
        worker = await here.start("worker", "--follow", dsn=pooled, batch_size=50)
        await here.until_in_step(60)
        await here.rows("update notes set body = 'again ' || id where id <= 100")
        await here.until_in_step(60)
        assert await worker.stop(signal.SIGINT) == 0, worker.err
        seen = await here.rows("select count(*) from pg_prepared_statements")
        assert seen == [(0,)]


async def test_c6_73_a_migration_that_is_ended_leaves_no_lock(server_dsn: str, tmp_path: Path) -> None:
    """Through PgBouncer alone, whose server connection lives on: the next `instep migrate` succeeds."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(f"create database {name} template template0")
        direct = make_conninfo(server_dsn, dbname=name)
        try:
            with pgbouncer(direct, tmp_path / "pooler") as through:
                here = Scene(direct, ModelServer(), tmp_path, {"INSTEP_DATA_DIR": str(tmp_path)})
                with psycopg.connect(direct) as holder:
                    holder.execute("select pg_advisory_xact_lock(%s)", [LOCK])
                    worker = await here.start("migrate", dsn=through)
                    locks = "select count(*) from pg_locks where database = (select oid from pg_database where datname = current_database()) and locktype = 'advisory'"  # others share the server
                    waits = f"{locks} and not granted"
                    while (await here.rows(waits)) != [(1,)]:
                        assert worker.code is None
                        await asyncio.sleep(0.1)
                    await worker.stop(signal.SIGINT, 30)
                    assert worker.code not in (0, None)
                assert await here.rows(locks) == [(0,)]
                worker = await here.start("migrate", dsn=through)
                assert await worker.ended(60) == 0, worker.err
                assert await here.rows("select count(*) from instep.migration") != [(0,)]
        finally:
            server.execute(f"drop database {name} with (force)")


def settings(dsn: str, **flags: object) -> Settings:
    return Settings.load(flags={"database_url": dsn, **flags}, environ={})


async def test_a_pooler_is_found_out(dsn: str, pooled: str) -> None:
    async with await Database.open(settings(pooled)) as database:
        assert database.pooler
        async with await database.dedicated() as conn:
            assert conn.prepare_threshold is None
            for number in range(12):
                row = await (await conn.execute("select %s::integer", [number])).fetchone()
                assert row == (number,)
    async with await Database.open(settings(pooled, direct_database_url=dsn)) as database:
        assert database.pooler
        async with await database.direct() as conn:
            assert conn.info.host != "127.0.0.1"
    async with await Database.open(settings(dsn)) as database:
        assert not database.pooler


@pytest.mark.parametrize(("name", "value"), [("extra_float_digits", "0"), ("intervalstyle", "'iso_8601'")])
async def test_a_database_whose_settings_change_hashes_is_refused_behind_a_pooler(
    dsn: str, tmp_path: Path, name: str, value: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"alter database {conninfo_to_dict(dsn)['dbname']} set {name} = {value}")
    with pgbouncer(dsn, tmp_path / "pooler") as through:
        with pytest.raises(Refused, match=name) as refused:
            await Database.open(settings(through))
        assert "ALTER DATABASE" in str(refused.value.hint)
