"""What the tests share: a real PostgreSQL and a fresh database for each test that asks for one.

INSTEP_TEST_DSN, a superuser's, runs them on another server (`make test-16`). `--pgbouncer` sends every connection to a
test's own database through a PgBouncer in transaction mode, those of tests marked `session` excepted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from instep.database import embedded
from instep.database.migrations import migrate

sys.path.insert(0, str(Path(__file__).parent))
from pooler import pgbouncer, through
from shared_server import SERVER_DIRECTORY

TEMPLATE = "instep_template"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pgbouncer", action="store_true", help="go through a PgBouncer in transaction mode")


def _unprepared(kind: Any) -> None:
    """A test's own connection prepares nothing behind PgBouncer; the product must see to that itself."""
    connect = kind.connect.__func__

    def patched(cls: Any, *arguments: Any, **options: Any) -> Any:
        if cls is kind:
            options.setdefault("prepare_threshold", None)
        return connect(cls, *arguments, **options)

    kind.connect = classmethod(patched)


def _replace_database(dsn: str, name: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, dbname=name)


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A DSN of the server that all tests (and all xdist workers, and all runs) share; superuser.

    The last one to leave stops it: each holds a shared lock, which only the last can turn into an exclusive one."""
    given = os.environ.get("INSTEP_TEST_DSN")
    if given:
        yield given
        return
    SERVER_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with open(SERVER_DIRECTORY / "users.lock", "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        dsn = embedded.start(SERVER_DIRECTORY)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("alter system set fsync = off")  # these databases are thrown away
            conn.execute("select pg_reload_conf()")
        yield dsn
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        embedded.stop(SERVER_DIRECTORY)


@pytest.fixture(scope="session")
def template(server_dsn: str) -> Iterator[str]:
    """A migrated database, from which each test's own is copied."""
    name = f"{TEMPLATE}_{os.getpid()}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    with psycopg.connect(_replace_database(server_dsn, name), autocommit=True) as conn:
        conn.execute("create extension if not exists vector")
    asyncio.run(migrate(_replace_database(server_dsn, name)))
    yield name
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="session", autouse=True)
def pooler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """With --pgbouncer: one for all tests of this process."""
    if not request.config.getoption("--pgbouncer"):
        yield None
        return
    server = request.getfixturevalue("server_dsn")
    _unprepared(psycopg.AsyncConnection)
    _unprepared(psycopg.Connection)
    with pgbouncer(server, tmp_path_factory.mktemp("pooler"), pool=20) as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def _through_the_pooler(
    request: pytest.FixtureRequest, pooler: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `through` leads; a test marked `session` needs sessions of its own, and says why."""
    if pooler is not None and request.node.get_closest_marker("session") is None:
        monkeypatch.setenv("INSTEP_TEST_POOLER", pooler)


@pytest.fixture
def dsn(server_dsn: str, template: str, _through_the_pooler: None) -> Iterator[str]:
    """A fresh, migrated database of this test's own."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    yield through(_replace_database(server_dsn, name))
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """An autocommit connection to the test's own database."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection
