"""pgqueuer's half, run by its own interpreter: `create|idle DSN`, `fill DSN JOBS`, `drain DSN BATCH DEQUEUERS`.

A no-op job on its fastest driver (asyncpg) and uvloop. Several dequeuers in one process, as its own benchmark has them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

PIECE = 1000


async def worker(dsn: str) -> PgQueuer:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None: ...

    return queue


async def main(what: str, dsn: str, *given: str) -> None:
    logging.disable(logging.WARNING)
    numbers = [int(one) for one in given]
    if what == "idle":
        await (await worker(dsn)).run()
    elif what == "drain":
        batch, dequeuers = numbers
        workers = [await worker(dsn) for _ in range(dequeuers)]
        cpu, began = time.process_time(), time.time()
        await asyncio.gather(*(one.run(batch_size=batch, mode=QueueExecutionMode.drain) for one in workers))
        print(json.dumps({"began": began, "ended": time.time(), "cpu": time.process_time() - cpu}))
    else:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
        if what == "create":
            await queries.install()
        for at in range(0, numbers[0] if what == "fill" else 0, PIECE):
            size = min(PIECE, numbers[0] - at)
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
