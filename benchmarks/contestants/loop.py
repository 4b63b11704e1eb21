"""The fastest loop that a person would write by hand, with no queue at all: read a page, embed it, copy it in.

    loop DSN URL PAGE REQUEST

Nothing is claimed, stamped, fenced, replaced or tried again: a crash loses its place, a changed row is never seen.
Pages of PAGE rows, requests of REQUEST texts; reading, embedding and writing overlap; vectors are parsed by simdjson,
rows go by binary COPY, commits are asynchronous. It needs the table that `create` makes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiohttp
import numpy as np
import orjson
import psycopg
import simdjson
import uvloop
from pgvector.psycopg import register_vector_async

TABLE = """create table vectors (id bigint primary key, text text, vector vector(384));
alter table vectors alter column vector set storage plain;"""
PAGE = "select id, title, body from docs where id > %s order by id limit %s"
COPY = "copy vectors (id, text, vector) from stdin (format binary)"
FOUND = "select id, text as sent, vector from vectors"


async def create(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(TABLE.encode())


async def write(writer: Any, rows: Any, texts: list[str], vectors: np.ndarray) -> None:
    async with writer.transaction(), writer.cursor().copy(COPY) as copy:
        copy.set_types(["int8", "text", "vector"])
        for row, text, vector in zip(rows, texts, vectors, strict=True):
            await copy.write_row((row[0], text, vector))


async def main(dsn: str, url: str, page: int, request: int) -> None:
    reader, writer = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(2)]
    for conn in (reader, writer):
        await register_vector_async(conn)
        await conn.execute("set synchronous_commit = off")
    parser, done, last = simdjson.Parser(), 0, 0

    async def read() -> Any:
        return await (await reader.execute(PAGE, (last, page), binary=True)).fetchall()

    async def embed(session: aiohttp.ClientSession, texts: list[str], into: np.ndarray) -> None:
        async with session.post(f"{url}/embed", data=orjson.dumps({"inputs": texts})) as response:
            body = await response.read()
        document: Any = parser.parse(body)
        into[:] = np.frombuffer(document.as_buffer(of_type="d"), dtype=np.float64).reshape(len(texts), -1)
        del document  # the parser is reused only when nothing refers to its document

    cpu, began = time.process_time(), time.time()
    async with aiohttp.ClientSession() as session:
        writing = None
        rows = await read()
        while rows:
            last = rows[-1][0]
            reading = asyncio.create_task(read())
            texts = [f"{title}. {body}" for _, title, body in rows]
            vectors = np.empty((len(texts), 384), dtype=np.float32)
            slices = [slice(at, at + request) for at in range(0, len(texts), request)]
            await asyncio.gather(*(embed(session, texts[part], vectors[part]) for part in slices))
            if writing:
                await writing
            writing = asyncio.create_task(write(writer, rows, texts, vectors))
            done += len(rows)
            rows = await reading
        if writing:
            await writing
    print(
        orjson.dumps(
            {"rows": done, "began": began, "ended": time.time(), "cpu": time.process_time() - cpu}
        ).decode()
    )
    await reader.close()
    await writer.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
