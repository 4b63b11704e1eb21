"""A fresh embedded server for each part, and a fresh copy of a prepared database for each round."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from instep.database import embedded

SETTINGS = {
    "track_commit_timestamp": "on"
}  # when the last row of a round was committed, whoever committed it


@dataclass(frozen=True, slots=True)
class Server:
    """One embedded PostgreSQL that nobody else uses. `dsn` is a superuser's, of its first database."""

    dsn: str
    data_dir: Path
    settings: dict[str, Any]

    def database(self, name: str) -> str:
        return psycopg.conninfo.make_conninfo(self.dsn, dbname=name)

    async def create(self, name: str, template: str | None = None) -> str:
        """A database, copied from `template` file by file (each round then starts from the same pages)."""
        source = (
            sql.SQL(" template {} strategy file_copy").format(sql.Identifier(template))
            if template
            else sql.SQL("")
        )
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )
            await conn.execute(sql.SQL("create database {}{}").format(sql.Identifier(name), source))
            await conn.execute("checkpoint")
        return self.database(name)


def uri(dsn: str) -> str:
    """For those who take no `name=value` (asyncpg): on a Unix socket, with no password."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    place = f"host={quote(str(parts['host']), safe='/')}&port={parts['port']}"
    return f"postgresql://{parts['user']}@/{parts['dbname']}?{place}"


@asynccontextmanager
async def server(**settings: str) -> AsyncIterator[Server]:
    """A server in a temporary directory with `settings` beyond what instep itself sets; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="instep-bench-", ignore_cleanup_errors=True) as directory:
        data_dir = Path(directory)
        dsn = await asyncio.to_thread(embedded.start, data_dir)
        try:
            if settings:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    for name, value in settings.items():
                        conn.execute(
                            sql.SQL("alter system set {} = {}").format(
                                sql.Identifier(name), sql.Literal(value)
                            )
                        )
                await asyncio.to_thread(embedded.stop, data_dir)
                dsn = await asyncio.to_thread(embedded.start, data_dir)
            yield Server(dsn, data_dir, _settings(dsn))
        finally:
            await asyncio.to_thread(embedded.stop, data_dir)


def _settings(dsn: str) -> dict[str, Any]:
    """What this server runs with that is not PostgreSQL's default, and its version."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        changed = conn.execute(
            "select name, setting || coalesce(unit, '') from pg_settings"
            " where source = 'configuration file' and name !~ '^(lc_|log_|TimeZone|DateStyle|unix_|dynamic_|default_text)'"
            " order by name"
        ).fetchall()
        version = conn.execute("show server_version").fetchone()
        conn.execute("create extension if not exists vector")
        vector = conn.execute("select extversion from pg_extension where extname = 'vector'").fetchone()
        assert version is not None
        assert vector is not None
    return {"postgresql": version[0], "pgvector": vector[0], **dict(changed)}
