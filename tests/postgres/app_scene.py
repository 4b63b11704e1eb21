"""The app over a fresh database and a real model server: what a user has after `instep tables add`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from instep.app import Instep
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.workshop import add_table
from instep.settings import Settings
from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder

DIMENSIONS = 16


@asynccontextmanager
async def opened(dsn: str, server: ModelServer, directory: Path, **flags: Any) -> AsyncIterator[Instep]:
    settings = Settings.load(
        flags={
            "database_url": dsn,
            "data_dir": str(directory),
            "embed_provider": "tei",
            "embed_url": server.url,
            "embed_model": server.model_name,
            "poll_seconds": 0.05,
            **flags,
        },
        environ={},
    )
    async with Instep.open(settings) as app:
        yield app


async def added(app: Instep, table: str, *text: str, **options: Any) -> str:
    return (await add_table(app, TableOptions(table, text, **{"engine": "tantivy", **options}))).name


async def ran(app: Instep, *names: str) -> dict[str, Any]:
    """Reports by derivation."""
    return {report.name: report for report in await app.run(names, observer=Recorder())}


async def found(app: Instep, name: str, query: str, **options: Any) -> list[Any]:
    """Keys, best first."""
    answer = await app.search(name, query, **{"mode": "lexical", **options})
    return [result.key[0] for result in answer.results]
