"""A real server over a fresh database and a real model server: what a client meets after `instep serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import uvicorn
from app_scene import added, ran
from fastapi import FastAPI

from instep.app import Instep
from instep.registry import Catalogue
from instep.server.factory import create_app
from instep.server.serving import config
from instep.settings import Settings
from instep.testing.model_server import ModelServer
from instep.web import keys
from instep.web.roles import Role

TABLES = """
create table articles (
    id bigint generated always as identity primary key, title text, body text, section text, price numeric,
    tags text[], published boolean not null default true);
insert into articles (title, body, section, price, tags) values
    ('Chess', 'Plays a game of chess against the computer', 'games', 10, '{a,b}'),
    ('Stockfish', 'A strong chess engine', 'games', 20, '{b}'),
    ('Vim', 'A text editor for programmers', 'editors', 30, null),
    ('Nano', 'A small text editor', 'editors', null, '{}'),
    ('Broken', 'Its text is poison to the model server', 'misc', 1, null);
create table secrets (name text primary key, body text);
insert into secrets values ('one', 'nobody may read of chess here');
create table notes (id bigint primary key, body text);
"""
POISON = "poison"


@dataclass
class Served:
    """A server that listens, with its application, its settings and a client for each role."""

    app: FastAPI
    settings: Settings
    url: str
    dsn: str
    model: ModelServer
    stack: AsyncExitStack
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def instep(self) -> Instep:
        opened: Instep = self.app.state.instep
        return opened

    async def key(self, role: str, *tables: str) -> str:
        """A key of this role, made once."""
        name = f"{role} {tables}"
        if name not in self.secrets:
            async with self.instep.database.connection() as conn:
                self.secrets[name] = (await keys.create(conn, Role(role), tables))[1]
        return self.secrets[name]

    async def client(
        self, role: str | None = "administrator", *tables: str, **headers: str
    ) -> httpx.AsyncClient:
        """None: without a key."""
        if role is not None:
            headers["authorization"] = f"Bearer {await self.key(role, *tables)}"
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False)
        return await self.stack.enter_async_context(client)

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            cursor = await conn.execute(statement, parameters or None)
            return await cursor.fetchall() if cursor.description else []

    async def add(self, table: str, *text: str, **options: Any) -> None:
        """Add a table and work it."""
        name = await added(self.instep, table, *text, **options)
        await ran(self.instep, name)


@asynccontextmanager
async def served(
    dsn: str,
    directory: Path,
    *,
    found: Sequence[Catalogue] | None = None,
    tables: bool = True,
    **flags: Any,
) -> AsyncIterator[Served]:
    """With `articles` added and worked (one dead letter), `secrets` added and worked, unless `tables` is false."""
    async with AsyncExitStack() as stack:
        model = ModelServer("tei")
        model.faults.refuse = {POISON: 400}
        await model.start()
        stack.push_async_callback(model.stop)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            await conn.execute(TABLES.encode())
        settings = Settings.load(
            flags={
                "database_url": dsn,
                "data_dir": str(directory),
                "embed_provider": "tei",
                "embed_url": model.url,
                "embed_model": model.model_name,
                "poll_seconds": 0.05,
                "search_engine": "postgres",
                "serve_port": 0,
                "serve_requests_per_minute": 0,
                **flags,
            },
            environ={},
        )
        app = create_app(settings, found=found)
        serving = config(app, settings)
        serving.timeout_graceful_shutdown = 1  # streams that tests left open
        server = uvicorn.Server(serving)
        task = asyncio.create_task(server.serve())
        stack.push_async_callback(_end, server, task)
        while not server.started:
            if task.done():
                task.result()
                raise AssertionError("the server ended while it started")
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        scene = Served(app, settings, f"http://127.0.0.1:{port}", dsn, model, stack)
        if tables:
            await scene.add(
                "articles", "title", "body", filters=("section", "price", "tags"), show=("title",)
            )
            await scene.add("secrets", "body")
        yield scene


async def _end(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    server.should_exit = True
    await task
