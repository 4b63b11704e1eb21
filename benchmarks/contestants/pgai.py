"""pgai's vectorizer worker, the nearest peer, in an environment of its own (6.8 GB) that is made when it is asked for.

Run as its documentation says, without what would need a download: its schema by `pgai install` (its extension is not
needed), no chunking, the server in Ollama's dialect, no index. It takes its batch as one request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import psycopg

from benchmarks import processes

VERSION = "0.12.1"
PLACE = Path(__file__).resolve().parent.parent / ".peers" / "pgai"
NEEDS_BYTES = 9 * 10**9
TABLE = "docs_embedding_store"
FOUND = f"select id, chunk as sent, embedding as vector from {TABLE}"
CREATE = """select ai.create_vectorizer('docs'::regclass, loading => ai.loading_column('body'),
    embedding => ai.embedding_ollama('instant', 384, base_url => %s), chunking => ai.chunking_none(),
    formatting => ai.formatting_python_template('$title. $chunk'), indexing => ai.indexing_none(),
    scheduling => ai.scheduling_none())"""
BATCH = "update ai.vectorizer set config = jsonb_set(config, '{processing}', ai.processing_default(%s, %s)::jsonb)"


def installed() -> bool:
    return (PLACE / "complete").exists()


async def install() -> None:
    """Its own virtual environment in benchmarks/.peers. Raises Failed where there is no room or no registry."""
    if installed():
        return
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(PLACE.parent).free
    if free < NEEDS_BYTES:
        raise processes.Failed(
            f"pgai takes {NEEDS_BYTES / 1e9:.0f} GB, {PLACE.parent} has {free / 1e9:.1f} free"
        )
    shutil.rmtree(PLACE, ignore_errors=True)
    await _whole([sys.executable, "-m", "venv", str(PLACE)])
    await _whole(
        [
            _program("python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-cache-dir",
            f"pgai[vectorizer-worker]=={VERSION}",
        ]
    )
    (PLACE / "complete").touch()


async def create(dsn: str, url: str) -> None:
    """Its schema and a vectorizer on `docs`; every row then waits in its queue."""
    await _whole([_program("pgai"), "install", "-d", dsn])
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(CREATE, (url,))
        await conn.execute("vacuum analyze")


async def configure(batch: int, concurrency: int, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(BATCH, (batch, concurrency))


def command(concurrency: int, dsn: str) -> list[str]:
    return [
        _program("pgai"),
        "vectorizer",
        "worker",
        "-d",
        dsn,
        "--once",
        "-c",
        str(concurrency),
        "--log-level",
        "WARN",
    ]


def environment() -> dict[str, str]:
    """No telemetry, no tracing agent: it would try to reach one."""
    return {"DD_TRACE_ENABLED": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}


def _program(name: str) -> str:
    return str(PLACE / "bin" / name)


async def _whole(command: list[str]) -> None:
    """With the whole environment of this process: a registry may be set there."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise processes.Failed(
            f"{' '.join(command[:4])} ended with {process.returncode}: {out.decode()[-2000:]}"
        )
