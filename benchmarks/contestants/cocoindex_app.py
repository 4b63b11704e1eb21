"""CocoIndex's half, run by its own interpreter: `documented|grouped DSN URL STATE [GROUP]`.

documented: as its PostgreSQL example does it, a component for each row (`mount_each`), memoised, its target a managed
table with pgvector; the embedder is a batching function, as its own embedders are. grouped: the rows are read by its
source, put together by hand into groups of GROUP by key, a component for each group, one request for each.
STATE is the directory of its own state; telemetry is turned off by the environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import asyncpg
import cocoindex as coco
import numpy as np
import orjson
import simdjson
from cocoindex.connectors import postgres
from cocoindex.resources.schema import VectorSchema
from numpy.typing import NDArray

MODE, DSN, URL, STATE = sys.argv[1:5]
GROUP = int(sys.argv[5]) if len(sys.argv) > 5 else 500
TABLE = "coco"
PARSER = simdjson.Parser()
SESSION: list[aiohttp.ClientSession] = []

POOL = coco.ContextKey[asyncpg.Pool]("pool")
VECTOR = VectorSchema(dtype=np.dtype(np.float32), size=384)


@dataclass
class Row:
    id: int
    title: str
    body: str


@dataclass
class Output:
    id: int
    text: str
    embedding: Annotated[NDArray[np.float32], VECTOR]


@coco.lifespan
async def lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = STATE
    async with asyncpg.create_pool(DSN) as pool:
        builder.provide(POOL, pool)
        yield


async def request(texts: list[str]) -> list[NDArray[np.float32]]:
    """Module-wide session: a batch's body runs outside any component's context."""
    if not SESSION:
        SESSION.append(aiohttp.ClientSession())
    async with SESSION[0].post(f"{URL}/embed", data=orjson.dumps({"inputs": texts})) as response:
        body = await response.read()
    document: Any = PARSER.parse(body)
    found = np.frombuffer(document.as_buffer(of_type="d"), dtype=np.float64).reshape(len(texts), -1)
    found = found.astype(np.float32)
    del document  # the parser is reused only when nothing refers to its document
    return list(found)


@coco.fn.as_async(batching=True, max_batch_size=GROUP)
async def embed(texts: list[str]) -> list[NDArray[np.float32]]:
    return await request(texts)


@coco.fn(memo=True)
async def one(row: Row, table: postgres.TableTarget[Output]) -> None:
    text = f"{row.title}. {row.body}"
    table.declare_row(row=Output(row.id, text, await embed(text)))


@coco.fn(memo=True)
async def many(rows: list[Row], table: postgres.TableTarget[Output]) -> None:
    texts = [f"{row.title}. {row.body}" for row in rows]
    for row, text, vector in zip(rows, texts, await request(texts), strict=True):
        table.declare_row(row=Output(row.id, text, vector))


async def groups(source: postgres.PgTableSource[Row]) -> AsyncIterator[tuple[int, list[Row]]]:
    found: dict[int, list[Row]] = {}
    async for row in source.fetch_rows():
        found.setdefault(row.id // GROUP, []).append(row)
    for number, rows in found.items():
        yield number, rows


@coco.fn
async def main() -> None:
    target = await postgres.mount_table_target(
        POOL, table_name=TABLE, table_schema=await postgres.TableSchema.from_class(Output, primary_key=["id"])
    )
    source = postgres.PgTableSource(coco.use_context(POOL), table_name="docs", row_type=Row)
    if MODE == "documented":
        await coco.mount_each(one, source.fetch_rows().items(lambda row: row.id), target)
    else:
        await coco.mount_each(many, groups(source), target)


app = coco.App(coco.AppConfig(name="Benchmark"), main)


async def run() -> None:
    cpu, began = time.process_time(), time.time()
    await app.update()
    print(json.dumps({"began": began, "ended": time.time(), "cpu": time.process_time() - cpu}))
    for session in SESSION:
        await session.close()


if __name__ == "__main__":
    asyncio.run(run())
