"""A hundred changed rows in a table of a million, with `--follow`: how long until all is in step.

The million are put in step by SQL: a stamp for each row with the hash that the declaration gives; chunks
for 20,000 of them, those that change among them (a million vectors would take longer to write than all the rest of
the benchmark). The worker builds its vector index over these before the clock starts.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import documents, model, postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import ours
from benchmarks.report import Figure, Part
from instep.database.migrations import migrate
from instep.engine.declared import read_declaration

ROWS, MADE, CHANGED = 1_000_000, 20_000, 100
GOAL_SECONDS = 2.0
INDEX_SECONDS = 300  # for the worker to become idle


async def measure(bench: Bench) -> Part:
    rows, made = bench.sized(ROWS, 3000), bench.sized(MADE, 2000)
    async with postgres.server() as server, model.started() as served:
        dsn = server.dsn
        bench.say(f"follow: making {rows:,} rows that are in step")
        await migrate(dsn)
        await documents.create(dsn, rows)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            chunk = await ours.create(dsn, served.url, swept=False)
            await _in_step(conn, chunk, made, rows)
            env = ours.settings(dsn, served.url)
            del env["INSTEP_SWEEP_EVERY_SECONDS"]
            process = await asyncio.create_subprocess_exec(
                *processes.python("benchmarks.contestants.ours", "--follow"), cwd=processes.ROOT,
                env=processes.environment(env), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            sampler = processes.MemorySampler(process.pid)
            try:
                scans = await _scans(conn)
                await _idle(conn, chunk)
                started_with = await _scans(conn) - scans
                bench.say("follow: the worker is idle")
                scans, seconds = await _scans(conn), []
                for round in range(max(5, bench.rounds)):
                    seconds.append(await _change(conn, made, round))
                    await asyncio.sleep(1.5)  # idle again
                await served.seen()
                scanned = await _scans(conn) - scans
            finally:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
                peak = await sampler.stop()
    return Part(
        "follow",
        f"A table of {rows:,} rows that is in step, one worker that follows (polling at its default), {CHANGED} rows "
        "with new text in one transaction; from its commit until each of them has a stamp of its new content and "
        f"nothing waits. {made:,} of the rows have vectors (written by SQL), under an HNSW index.",
        [
            Figure(f"{CHANGED} changed rows in step, median", median(seconds), "s", at_most=GOAL_SECONDS),
            Figure("slowest of these", max(seconds), "s", at_most=GOAL_SECONDS),
            Figure("sequential scans of the table meanwhile", scanned, "", at_most=0),
            Figure("sequential scans from the worker's start until it was idle", started_with, ""),
            Figure("memory of the worker at its highest", peak / processes.MEGABYTE, "MB"),
        ],
        rounds={"seconds": seconds},
        settings=server.settings,
    )


async def _in_step(conn: psycopg.AsyncConnection, chunk: str, made: int, rows: int) -> None:
    """As a complete fill and a complete sweep leave it: by SQL, in a minute."""
    declaration = await read_declaration(conn, ours.DERIVATION)
    await conn.execute(
        sql.SQL(
            "insert into instep.stamp_docs_embed (key_1, target, content_hash)"
            " select id, (select target from instep.target where derivation = 'docs.embed'), {} from docs"
        ).format(sql.SQL(declaration.hash))
    )
    await conn.execute(
        sql.SQL(
            "insert into {} (key_1, text_hash, text, vector) select id, sha256(convert_to(title || E'\\n\\n' || body, 'UTF8')),"
            " title || E'\\n\\n' || body, (select array_agg(random() - 0.5 + (g + id) * 0) from generate_series(1, 384) g)::vector"
            " from docs where id % {} = 0"
        ).format(sql.SQL(chunk), rows // made)
    )
    await conn.execute("update instep.derivation set sweep_due = null, swept_at = now()")
    await conn.execute("vacuum analyze")


async def _idle(conn: psycopg.AsyncConnection, chunk: str) -> None:
    """Until the worker has built its index and looks for changes."""
    deadline = time.monotonic() + INDEX_SECONDS
    while time.monotonic() < deadline:
        row = await _one(
            conn,
            "select count(*) from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where i.indrelid = %s::regclass and c.relname like '%%hnsw' and i.indisvalid",
            (chunk,),
        )
        if row:
            await asyncio.sleep(3)
            return
        await asyncio.sleep(0.25)
    raise processes.Failed("the worker built no index")


async def _change(conn: psycopg.AsyncConnection, made: int, round: int) -> float:
    """Change rows all over the table; seconds until each is in step."""
    rows = await _one(conn, "select max(id) from docs", ())
    chosen = random.Random(round).sample(range(1, made), min(CHANGED, made // 2))
    ids = [number * (rows // made) for number in chosen]
    hashed = (await read_declaration(conn, ours.DERIVATION)).hash
    in_step = sql.SQL(
        "select (select count(*) from docs join instep.stamp_docs_embed s on s.key_1 = id"
        " where id = any(%(ids)s::bigint[]) and s.content_hash = {hash}) = %(count)s"
        " and not exists (select from instep.change_docs) and not exists (select from instep.outbox_docs_embed)"
    ).format(hash=sql.SQL(hashed))
    await conn.execute(
        "update docs set body = body || %s where id = any(%s::bigint[])", (f" changed {round}", ids)
    )
    began = time.monotonic()
    while not await _one(conn, in_step, {"ids": ids, "count": len(ids)}):
        if time.monotonic() - began > 60:
            raise AssertionError("100 changed rows were not in step after a minute")
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def _scans(conn: psycopg.AsyncConnection) -> int:
    """Sequential scans of the table; sessions tell of theirs within a second or when they are idle."""
    await asyncio.sleep(1.2)
    return int(await _one(conn, "select seq_scan from pg_stat_user_tables where relname = 'docs'", ()))


async def _one(conn: psycopg.AsyncConnection, statement: Any, values: Any) -> Any:
    row = await (await conn.execute(statement, values)).fetchone()
    assert row is not None
    return row[0]
