"""What capture costs the user's own writes: bulk inserts with triggers on and off, and updates that nobody watches."""

from __future__ import annotations

import time
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
                for name, table in TABLES.items():
                    one = await _insert(conn, table, statements, first, one_transaction=True)
                    each = await _insert(
                        conn, table, statements, first + statements * ROWS, one_transaction=False
                    )
                    if round:  # the first one makes the pages and the plans
                        together[name].append(one)
                        apart[name].append(each)
                first += 2 * statements * ROWS
                bench.say(f"capture: round {round} of {bench.rounds}")
        entries, requests = await _unwatched(await server.create("small"), served, unwatched)
    ratios = [with_it / bare for with_it, bare in zip(together["captured"], together["bare"], strict=True)]
    ratios_apart = [with_it / bare for with_it, bare in zip(apart["captured"], apart["bare"], strict=True)]
    return Part(
        "capture",
        f"{statements} statements of {ROWS} rows generated in the server into a table with a primary key, "
        "with capture of two derivations and bare, taking turns.",
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


async def _insert(
    conn: psycopg.AsyncConnection, table: str, statements: int, first: int, *, one_transaction: bool
) -> float:
    """Seconds for all statements."""
    texts = [
        sql.SQL(INSERT)
        .format(sql.Identifier(table), first + at * ROWS, first + at * ROWS + ROWS - 1)
        .as_bytes(conn)
        for at in range(statements)
    ]
    began = time.perf_counter()
    if one_transaction:
        async with conn.transaction():
            for text in texts:
                await conn.execute(text)
    else:
        for text in texts:
            await conn.execute(text)
    return time.perf_counter() - began


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
