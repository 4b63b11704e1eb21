"""Sessions are alike whatever the server says, and a server that cannot serve is refused with what to do."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from instep.database.pool import Database, Server, refuse_server
from instep.database.transactions import transaction
from instep.errors import Outage, Refused, SettingsError
from instep.settings import Settings


def settings(dsn: str, **flags: object) -> Settings:
    return Settings.load(flags={"database_url": dsn, **flags}, environ={})


async def shown(conn: psycopg.AsyncConnection, *names: str) -> list[str]:
    return [(await (await conn.execute(f"show {name}")).fetchone())[0] for name in names]


@pytest.mark.versions
@pytest.mark.session("about what a session of our own pins")
async def test_sessions_are_pinned_against_the_databases_own_settings(dsn: str) -> None:
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as conn:
        for setting in ("timezone = 'Asia/Tokyo'", "datestyle = 'SQL, DMY'", "extra_float_digits = 0"):
            conn.execute(sql.SQL("alter database {} set " + setting).format(name))
    async with await Database.open(settings(dsn)) as database:
        async with database.connection() as pooled, await database.dedicated() as own:
            for conn in (pooled, own):
                assert conn.autocommit
                assert await shown(
                    conn, "timezone", "datestyle", "extra_float_digits", "application_name"
                ) == [
                    "UTC",
                    "ISO, DMY",
                    "1",
                    "instep",
                ]


@pytest.mark.versions
@pytest.mark.session("a pooler's server connections are older than the changed default")
async def test_a_transaction_is_read_committed_whatever_the_default(dsn: str) -> None:
    name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("alter database {} set default_transaction_isolation = 'repeatable read'").format(name)
        )
    async with await Database.open(settings(dsn)) as database, database.connection() as conn:
        assert await shown(conn, "transaction_isolation") == ["repeatable read"]
        async with transaction(conn, "synchronous_commit = off"):
            assert await shown(conn, "transaction_isolation", "synchronous_commit") == [
                "read committed",
                "off",
            ]
        assert await shown(conn, "synchronous_commit") == ["on"]


async def test_a_transaction_that_fails_leaves_nothing_and_a_usable_connection(dsn: str) -> None:
    async with await Database.open(settings(dsn)) as database, database.connection() as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with transaction(conn):
                await conn.execute("create table left_behind (n integer); select 1 / 0")
        assert await (await conn.execute("select to_regclass('left_behind')")).fetchone() == (None,)


@pytest.mark.versions
async def test_vectors_travel_as_arrays(dsn: str) -> None:
    async with await Database.open(settings(dsn)) as database, database.connection() as conn:
        sent = np.array([0.5, -2, 1e-7], dtype=np.float32)
        row = await (await conn.execute("select %s::vector", [sent])).fetchone()
        assert row is not None
        assert (row[0].to_numpy() == sent).all()


@pytest.mark.session("about the process id that the server gave")
async def test_a_connection_that_the_server_ended_is_replaced_before_it_is_handed_out(dsn: str) -> None:
    async with await Database.open(settings(dsn)) as database:
        async with database.connection() as conn:
            pid = conn.info.backend_pid
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [pid])
        async with database.connection() as conn:
            assert conn.info.backend_pid != pid
            await conn.execute("select 1")


async def test_a_dead_peer_is_noticed_and_the_users_own_word_wins(dsn: str) -> None:
    async with await Database.open(settings(make_conninfo(dsn, keepalives_idle=7))) as database:
        async with database.connection() as conn:
            found = conn.info.get_parameters()
            assert (found["keepalives_idle"], found["tcp_user_timeout"]) == ("7", "60000")


async def test_behind_a_pooler_nothing_is_prepared(dsn: str) -> None:
    async with await Database.open(settings(dsn, pooler=True)) as database, database.connection() as conn:
        for _ in range(8):
            await conn.execute("select %s::integer", [1])
        prepared = await (await conn.execute("select count(*) from pg_prepared_statements")).fetchone()
        assert prepared == (0,)
        assert await shown(conn, "timezone") == ["UTC"]


@pytest.fixture
def plain_database(server_dsn: str):
    """A database that nobody prepared, made with options; dropped afterwards."""
    made: list[str] = []

    def make(options: str = "") -> str:
        name = f"p_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server_dsn, autocommit=True) as conn:
            conn.execute(f"create database {name} template template0 {options}")
        made.append(name)
        return make_conninfo(server_dsn, dbname=name)

    yield make
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        for name in made:
            conn.execute(f"drop database {name} with (force)")


@pytest.mark.versions
async def test_pgvector_is_added_where_it_is_missing(plain_database) -> None:
    async with await Database.open(settings(plain_database())) as database, database.connection() as conn:
        await conn.execute("select '[1]'::vector")


async def test_no_pgvector_and_no_right_to_add_it(plain_database) -> None:
    dsn = plain_database()
    role = f"r_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"create role {role} login")
    try:
        with pytest.raises(Refused, match="has no pgvector, and this role may not add it") as refused:
            await Database.open(settings(make_conninfo(dsn, user=role)))
        assert "CREATE EXTENSION vector" in str(refused.value.hint)
    finally:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f"drop role {role}")


async def test_another_encoding_is_refused(plain_database) -> None:
    dsn = plain_database("encoding 'LATIN1' locale_provider libc locale 'C'")
    with pytest.raises(Refused, match="encoded in LATIN1; instep needs UTF8"):
        await Database.open(settings(dsn))


async def test_pgvector_off_the_search_path_is_refused(plain_database) -> None:
    dsn = plain_database()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create schema hidden; create extension vector schema hidden")
    with pytest.raises(Refused, match="in the schema hidden, which is not on this role's search_path"):
        await Database.open(settings(dsn))


# A server without pgvector or with an old one is not to be had here: what was seen of it is made up.
@pytest.mark.parametrize(
    ("server", "says", "hints"),
    [
        (Server(150004, "UTF8", "0.8.0", "0.8.0", "public", True, "d"), "is PostgreSQL 15", "upgrade"),
        (Server(160002, "UTF8", None, None, None, False, "d"), "has no pgvector", "postgresql-16-pgvector"),
        (Server(160002, "UTF8", "0.7.4", None, None, False, "d"), "offers pgvector 0.7.4", "upgrade"),
        (
            Server(160002, "UTF8", "0.8.1", "0.7.4", "public", True, "d"),
            "has pgvector 0.7.4",
            "run there: ALTER",
        ),
        (
            Server(160002, "UTF8", "0.7.4", "0.7.4", "public", True, "d"),
            "has pgvector 0.7.4",
            "then run: ALTER",
        ),
    ],
)
def test_what_is_too_old_is_refused_with_what_to_do(server: Server, says: str, hints: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        refuse_server(server)
    assert hints in str(refused.value.hint)


async def test_a_database_that_does_not_exist_is_refused(server_dsn: str) -> None:
    with pytest.raises(Refused, match="does not exist"):
        await Database.open(settings(make_conninfo(server_dsn, dbname="no_such_database")))


async def test_nobody_listening_is_an_outage() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused
        with pytest.raises(Outage, match="does not answer"):
            await Database.open(settings(f"postgresql://u:secret@127.0.0.1:{held.getsockname()[1]}/d"))


async def test_a_connection_string_that_is_none_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="DATABASE_URL") as refused:
        await Database.open(settings("postgres//user:secret@host"))
    assert "secret" not in str(refused.value)
