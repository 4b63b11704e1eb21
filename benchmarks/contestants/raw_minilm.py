"""MiniLM alone: every text of `docs` at once, with nothing read or written in between. `raw_minilm DSN CACHE`.

It may sort all texts by length, which a queue's waves can do only within a wave.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import orjson
import psycopg
import uvloop

from instep.inference.providers import create_embedder
from instep.text.compose import entity_text


async def main(dsn: str, cache: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        rows = await (await conn.execute("select title, body from docs order by id")).fetchall()
    texts = [entity_text(row) for row in rows]
    embedder = create_embedder("minilm", cache_dir=Path(cache))
    await embedder.probe()  # loads the model
    cpu, began = time.process_time(), time.time()
    embedded = await embedder.embed(texts)
    ended = time.time()
    if embedded.failures or len(embedded.vectors) != len(texts):
        raise AssertionError("the model failed")
    print(
        orjson.dumps(
            {"rows": len(texts), "began": began, "ended": ended, "cpu": time.process_time() - cpu}
        ).decode()
    )
    await embedder.close()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(sys.argv[1], sys.argv[2]))
