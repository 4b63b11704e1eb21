"""pgai's vectorizer worker, the nearest peer, in an environment of its own (6.8 GB) that is made when it is asked for.

Run as its documentation says, without what would need a download: its schema by `pgai install` (its extension is not
needed), no chunking, the server in Ollama's dialect, no index. It takes its batch as one request.
"""

from __future__ import annotations

import psycopg

from benchmarks.environments import PGAI

TABLE = "docs_embedding_store"
FOUND = f"select id, chunk as sent, embedding as vector from {TABLE}"
CREATE = """select ai.create_vectorizer('docs'::regclass, loading => ai.loading_column('body'),
    embedding => ai.embedding_ollama('instant', 384, base_url => %s), chunking => ai.chunking_none(),
    formatting => ai.formatting_python_template('$title. $chunk'), indexing => ai.indexing_none(),
    scheduling => ai.scheduling_none())"""
BATCH = "update ai.vectorizer set config = jsonb_set(config, '{processing}', ai.processing_default(%s, %s)::jsonb)"


async def create(dsn: str, url: str) -> None:
    """Its schema and a vectorizer on `docs`; every row then waits in its queue."""
    await PGAI.whole([PGAI.program("pgai"), "install", "-d", dsn])
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(CREATE, (url,))
        await conn.execute("vacuum analyze")


async def configure(batch: int, concurrency: int, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(BATCH, (batch, concurrency))


def command(concurrency: int, dsn: str) -> list[str]:
    return [
        PGAI.program("pgai"),
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
