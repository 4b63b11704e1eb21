"""pgqueuer's half, run by its own interpreter: `create|idle DSN`, `fill DSN JOBS`, `drain DSN BATCH DEQUEUERS`,
`follow DSN BATCH`, `offer DSN RATE JOBS WARM_UP`.

A no-op job on its fastest driver (asyncpg) and uvloop. Several dequeuers in one process, as its own benchmark has them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
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
LATENCIES: list[float] = []  # from the enqueueing to the job's start, of those after the warm-up


async def worker(dsn: str) -> PgQueuer:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        if job.payload:
            LATENCIES.append(time.time() - float(job.payload))

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
    elif what == "follow":
        one = await worker(dsn)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, one.shutdown.set)
        await one.run(batch_size=numbers[0])
        print(json.dumps({"latencies": LATENCIES}))
    else:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
        if what == "create":
            await queries.install()
        elif what == "offer":
            rate, jobs, warm = numbers
            began = time.monotonic()
            for at in range(jobs):
                await asyncio.sleep(max(0.0, began + at / rate - time.monotonic()))
                await queries.enqueue("noop", str(time.time()).encode() if at >= warm else None)
            print(json.dumps({"rate": jobs / (time.monotonic() - began)}))
        for at in range(0, numbers[0] if what == "fill" else 0, PIECE):
            size = min(PIECE, numbers[0] - at)
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
