"""procrastinate's half, run by its own interpreter: `create|idle DSN`, `fill DSN JOBS`, `drain DSN CONCURRENCY`,
`follow DSN CONCURRENCY`, `offer DSN RATE JOBS WARM_UP`.

A no-op job. Its best settings as its documentation names them: asynchronous jobs, concurrency, jobs deleted when done
(`delete_jobs="always"`), no notifications where nothing waits for them, the standard loop replaced by uvloop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import procrastinate
import uvloop

PIECE = 1000
LATENCIES: list[float] = []  # from the defer to the job's start, of those after the warm-up


def make(dsn: str, connections: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=connections, max_size=connections)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(sent: float = 0.0) -> None:
        if sent:
            LATENCIES.append(time.time() - sent)

    return app


async def main(what: str, dsn: str, *given: str) -> None:
    logging.disable(logging.WARNING)
    number = int(given[0]) if given else 1
    connections = min(number, 20) + 2 if what in ("drain", "follow") else 8 if what == "offer" else 3
    async with make(dsn, connections).open_async() as app:
        if what == "create":
            await app.schema_manager.apply_schema_async()
        elif what == "fill":
            for at in range(0, number, PIECE):
                await app.tasks["noop"].batch_defer_async(*({} for _ in range(at, min(at + PIECE, number))))
        elif what == "idle":
            await app.run_worker_async()
        elif what == "follow":
            await app.run_worker_async(concurrency=number, delete_jobs="always")
            print(json.dumps({"latencies": LATENCIES}))
        elif what == "offer":
            rate, jobs, warm = (int(one) for one in given)
            began = time.monotonic()
            async with asyncio.TaskGroup() as deferring:
                for at in range(jobs):
                    await asyncio.sleep(max(0.0, began + at / rate - time.monotonic()))
                    job = app.tasks["noop"].defer_async(sent=time.time() if at >= warm else 0.0)
                    deferring.create_task(job)
            print(json.dumps({"rate": jobs / (time.monotonic() - began)}))
        else:
            cpu, began = time.process_time(), time.time()
            await app.run_worker_async(
                wait=False, concurrency=number, delete_jobs="always", listen_notify=False
            )
            print(json.dumps({"began": began, "ended": time.time(), "cpu": time.process_time() - cpu}))


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(*sys.argv[1:]))
