"""Many runs in one interpreter, each with an event loop, connections and signal handlers of its own, as `instep run` has.

    python run_many.py RUNS SEED WRITES_DSN

The settings come from the environment. A third of the runs find nothing to do, a third have work, a third have work and
get SIGTERM in the middle of it, after a seeded time. One JSON line for each: kind, outcome, seconds. A run that takes
longer than BOUND ends the process, with the traceback of every thread.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import psycopg
import uvloop

from instep.app import Instep
from instep.engine.ports import RunReport
from instep.engine.stopping import Stop
from instep.settings import Settings
from instep.worker import Terminated, supervise

BOUND = 30.0  # seconds; a run takes about one, and SIGTERM waits at most ten for what does not answer
CLOSED_SECONDS = 5.0
KINDS = ("idle", "work", "terminated")
LONGEST = 3.0  # seconds until SIGTERM: over the latency, a run takes about as long


class Silent:
    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        return


async def run(settings: Settings, terminated_after: float | None) -> str:
    """How it ended."""
    loop = asyncio.get_running_loop()
    async with Instep.open(settings) as app:

        async def work(stop: Stop) -> list[RunReport]:
            handle = None
            if terminated_after is not None:
                handle = loop.call_later(terminated_after, os.kill, os.getpid(), signal.SIGTERM)
            try:
                return await app.run(["articles"], observer=Silent(), stop=stop)
            finally:
                if handle is not None:
                    handle.cancel()

        try:
            reports = await supervise(work, lambda line: None)
        except Terminated:
            return "terminated"
    return "ok" if all(report.exit_code == 0 for report in reports) else str(reports)


def left(writer: psycopg.Connection[Any]) -> int:
    """Sessions that the run has not closed; the server needs a moment to see that they are."""
    until = time.monotonic() + CLOSED_SECONDS
    while True:
        (sessions,) = writer.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        ).fetchone()  # type: ignore[misc]
        if not sessions or time.monotonic() > until:
            return int(sessions)
        time.sleep(0.02)


def main(runs: int, seed: int, writes_dsn: str) -> None:
    settings, chance = Settings.load(), random.Random(seed)
    with psycopg.connect(writes_dsn, autocommit=True) as writer:
        for number in range(runs):
            kind = KINDS[number % len(KINDS)]
            if kind != "idle":
                writer.execute("update articles set title = 'new ' || title where id %% 3 = %s", [number % 3])
                writer.execute("update articles set title = 'item' where length(title) > 100")
            after = chance.uniform(0.0, LONGEST) if kind == "terminated" else None
            faulthandler.dump_traceback_later(BOUND, exit=True)
            began = time.monotonic()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                outcome = runner.run(run(settings, after))
            faulthandler.cancel_dump_traceback_later()
            seconds = round(time.monotonic() - began, 3)
            owned = sum(
                writer.execute(
                    f"select count(*) from instep.outbox_articles_{derivation} where token is not null"
                    " or lease_until is not null or not_before is not null or attempts > 0 or claims > 0"
                ).fetchone()[0]  # type: ignore[index]
                for derivation in ("embed", "search")
            )
            told = {
                "kind": kind,
                "outcome": outcome,
                "seconds": seconds,
                "owned": owned,
                "sessions": left(writer),
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
