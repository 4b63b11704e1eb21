"""The command line in tests: a prepared database, a model server beside it, commands run in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from instep.cli.main import execute
from instep.testing.model_server import DIMENSIONS, ModelServer
from pooler import through

POISON = "poison"  # a text with it is refused by the model server

TABLES = """
create table packages (
    name text primary key, description text not null, section text not null, installed_size integer not null,
    obsolete boolean not null default false, updated_at timestamptz not null default now()
);
insert into packages (name, description, section, installed_size)
values ('gnuchess', 'Plays a game of chess against the computer', 'games', 750),
       ('stockfish', 'A strong chess engine', 'games', 46223),
       ('xboard', 'A chess board game for your screen', 'games', 5000),
       ('vim', 'A text editor for programmers', 'editors', 3700),
       ('nano', 'A small, friendly text editor', 'editors', 2800),
       ('broken-one', 'Its text is poison to the model server', 'misc', 1);
create table articles (
    id bigint generated always as identity primary key, title text, body text, published boolean not null default true,
    published_at timestamptz not null default now(), section text, price numeric
);
insert into articles (title, body) select 'Title ' || n, 'Body of article ' || n from generate_series(1, 5) n;
create schema shop;
create table shop.orders (id uuid primary key default gen_random_uuid(), comment text);
insert into shop.orders (comment) values ('please hurry');
create table keyless (comment text);
create view recent as select * from articles;
"""


class ModelThread:
    """A model server that runs beside tests which are not async."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.server = ModelServer("tei", dimensions=dimensions)
        self.server.faults.refuse = {POISON: 400}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ModelThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)
        return self

    def release(self) -> None:
        """`server.release` wakes nobody when it is called from another thread than the server's."""
        self._loop.call_soon_threadsafe(self.server.release)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@dataclass(frozen=True)
class Seen:
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """Stdout as the one object that it must be."""
        told = json.loads(self.out)
        assert isinstance(told, dict)
        return told


@dataclass
class CommandLine:
    """Commands on one database: `run` in this process, `start` as a process of its own."""

    environment: dict[str, str]
    capture: pytest.CaptureFixture[str] | None = None

    @property
    def dsn(self) -> str:
        return self.environment["DATABASE_URL"]

    def run(self, *arguments: str) -> Seen:
        assert self.capture is not None
        self.capture.readouterr()
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            code = execute(arguments)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return Seen(code, *self.capture.readouterr())

    def line(self, line: str) -> Seen:
        """A line as documentation shows it, without the shell's own parts."""
        inside = re.search(r"\$\((instep [^)]*)\)", line)
        words = shlex.split((inside.group(1) if inside else line).partition(" > ")[0])
        assert words[0] == "instep"
        if words[1:3] == ["db", "psql"]:  # it becomes another program
            done = self.start(*words[1:])
            return Seen(done.wait(60), done.stdout.read(), done.stderr.read())  # type: ignore[union-attr]
        return self.run(*words[1:])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "instep", *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []


def environment(dsn: str, model: ModelThread, directory: Path) -> dict[str, str]:
    return {
        "DATABASE_URL": dsn,
        "INSTEP_DATA_DIR": str(directory),
        "INSTEP_EMBED_PROVIDER": "tei",
        "INSTEP_EMBED_URL": model.server.url,
        "NO_COLOR": "1",
    }


@contextmanager
def database(server_dsn: str, name: str, template: str) -> Iterator[str]:
    """A copy of a database, dropped at the end."""
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    try:
        yield through(psycopg.conninfo.make_conninfo(server_dsn, dbname=name))
    finally:
        with psycopg.connect(server_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def catalogue(line: CommandLine) -> dict[str, list[tuple[Any, ...]]]:
    """All that a refused command could have left in the database."""
    queries = {
        "relations": "select oid::int, relname, relnamespace::regnamespace::text from pg_class where oid >= 16384 order by 1",
        "triggers": "select tgname, tgrelid::int, tgenabled from pg_trigger order by oid",
        "functions": "select oid::int, proname from pg_proc where oid >= 16384 order by 1",
        "sources": "select * from instep.source order by 1",
        "derivations": "select * from instep.derivation order by 1",
        "targets": "select * from instep.target order by 1",
        "markers": "select * from instep.marker order by 1",
    }
    return {name: line.sql(query) for name, query in queries.items()}
