"""What capture costs the user's own writes: bulk inserts with triggers on and off, and updates that nobody watches."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from statistics import median

import psycopg
from psycopg import sql

from benchmarks import documents, model, postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import ours
from benchmarks.report import Figure, Part

STATEMENTS, ROWS = 200, 500
UNWATCHED = 1000
GOAL = 1.8
INSERT = (
    "insert into {} (id, title, body) select g, 'title ' || g, 'this is a short text about number ' || g || ' and gardens'"
    " from generate_series({}::bigint, {}::bigint) g"
)
TABLES = {"bare": "bare", "captured": "docs"}


async def measure(bench: Bench) -> Part:
    statements, unwatched = bench.sized(STATEMENTS, 4), bench.sized(UNWATCHED, 50)
    async with postgres.server() as server, model.started() as served:
        dsn = server.dsn
        await documents.create(dsn, 100)
        await documents.create(dsn, 100, "bare")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            await conn.execute("alter table docs add column seen integer not null default 0")
            await conn.execute("alter table bare add column seen integer not null default 0")
            await ours.create(dsn, served.url)
            together: dict[str, list[float]] = {name: [] for name in TABLES}
            apart: dict[str, list[float]] = {name: [] for name in TABLES}
            first = 1000
            for round in range(bench.rounds + 1):
                for found, in_one in ((together, True), (apart, False)):
                    seconds = await _insert(dsn, statements, first, one_transaction=in_one)
                    first += statements * ROWS
                    if round:  # the first one makes the pages and the plans
                        for name, took in seconds.items():
                            found[name].append(took)
                bench.say(f"capture: round {round} of {bench.rounds}")
        entries, requests = await _unwatched(await server.create("small"), served, unwatched)
    ratios = [with_it / bare for with_it, bare in zip(together["captured"], together["bare"], strict=True)]
    ratios_apart = [with_it / bare for with_it, bare in zip(apart["captured"], apart["bare"], strict=True)]
    return Part(
        "capture",
        f"{statements} statements of {ROWS} rows generated in the server into a table with a primary key, "
        "with capture of two derivations and bare, taking turns statement by statement.",
        [
            Figure(
                "bare, rows/s, in one transaction", statements * ROWS / median(together["bare"]), "rows/s"
            ),
            Figure(
                "captured, rows/s, in one transaction",
                statements * ROWS / median(together["captured"]),
                "rows/s",
            ),
            Figure("captured / bare, in one transaction", median(ratios), "× the time", at_most=GOAL),
            Figure(
                "captured / bare, a commit for each statement",
                median(ratios_apart),
                "× the time",
                at_most=GOAL,
            ),
            Figure(f"entries and log rows after {unwatched:,} unwatched updates", entries, "", at_most=0),
            Figure("requests to the model in a run after them", requests, "", at_most=0),
        ],
        rounds={"one transaction": together, "a commit for each": apart},
        settings=server.settings,
    )


async def _insert(dsn: str, statements: int, first: int, *, one_transaction: bool) -> dict[str, float]:
    """Seconds for all statements into each table. They take turns statement by statement, each table on a connection
    of its own, so that whatever else the machine does hits both alike."""
    seconds = dict.fromkeys(TABLES, 0.0)
    async with AsyncExitStack() as stack:
        conns = {
            name: await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn, autocommit=True))
            for name in TABLES
        }
        if one_transaction:
            for conn in conns.values():
                await conn.execute("begin")
        for at in range(first, first + statements * ROWS, ROWS):
            for name, table in TABLES.items():
                text = sql.SQL(INSERT).format(sql.Identifier(table), at, at + ROWS - 1).as_bytes(conns[name])
                began = time.perf_counter()
                await conns[name].execute(text)
                seconds[name] += time.perf_counter() - began
        for name, conn in conns.items():
            began = time.perf_counter()
            if one_transaction:
                await conn.execute("commit")
            seconds[name] += time.perf_counter() - began
    return seconds


async def _unwatched(dsn: str, served: model.Model, updates: int) -> tuple[int, int]:
    """From a table in step: entries and log rows that updates of an unwatched column left, and requests made."""
    await documents.create(dsn, 100)
    env = ours.settings(dsn, served.url)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("alter table docs add column seen integer not null default 0")
        await ours.create(dsn, served.url)
        await processes.run(processes.python("benchmarks.contestants.ours"), env)
        await served.seen()
        for id in range(updates):
            await conn.execute("update docs set seen = seen + 1 where id = %s", (1 + id % 100,))
        cursor = await conn.execute(
            "select (select count(*) from instep.change_docs) + (select count(*) from instep.outbox_docs_embed)"
        )
        row = await cursor.fetchone()
        assert row is not None
    await processes.run(processes.python("benchmarks.contestants.ours"), env)
    return int(row[0]), int((await served.seen())["requests"])
