"""The queue alone: no-op entries drained by the engine, by peers, by pgbench one at a time, and by a hand-written loop.

A no-op entry is not nothing: it is claimed, its content and hash are loaded, its (empty) output is stamped, and it is
removed under its token. Peers' no-op jobs are claimed, run and deleted. The clock of each runs from the call that
begins the work to that call's end, connections of the worker included where the worker makes them itself (ours does).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import activity, environments, postgres, processes, turns
from benchmarks.bench import Bench
from benchmarks.contestants import noop, pgbench_queue
from benchmarks.environments import PGQUEUER, PROCRASTINATE, Environment
from benchmarks.report import Figure, Part, Table
from benchmarks.turns import Entrant

ENTRIES, WAVE = 200_000, 500
PGBENCH_ENTRIES = 40_000
JOBS = {PROCRASTINATE.name: 3_000, PGQUEUER.name: 40_000}  # they are slower: about as many seconds
SETTINGS: dict[str, dict[str, tuple[int, ...]]] = {
    PROCRASTINATE.name: {
        f"{n} at once, jobs deleted, no LISTEN, psycopg, uvloop": (n,) for n in (1, 20, 100)
    },
    PGQUEUER.name: {
        f"batch {batch}, {dequeuers} dequeuers, asyncpg, uvloop": (batch, dequeuers)
        for batch, dequeuers in ((10, 5), (100, 1), (500, 1))
    },
}
TABLES = {PROCRASTINATE.name: "procrastinate_jobs", PGQUEUER.name: "pgqueuer"}
ASYNCHRONOUS = "with synchronous_commit = off"
GOAL_PEER, GOAL_LOOP = 75.0, 0.6


async def measure(bench: Bench) -> Part:
    entries = bench.sized(ENTRIES, 2 * WAVE)
    with tempfile.TemporaryDirectory() as directory:
        async with postgres.server() as server:
            async with await psycopg.AsyncConnection.connect(
                await server.create("items"), autocommit=True
            ) as conn:
                await noop.create(conn, entries)
            script = Path(directory) / "one_at_a_time.sql"
            one_at_a_time = _pgbench(server, script, bench.sized(PGBENCH_ENTRIES, 200), entries)
            entrants = [*_ours(server, entries), one_at_a_time]
            for peer in (PROCRASTINATE, PGQUEUER) if bench.with_peers else ():
                entrants += await _peers(bench, server, peer)
            best = await turns.take(bench, "queue", entrants)
    return await _part(bench, server, entrants, best, entries)


def _ours(server: postgres.Server, entries: int) -> list[Entrant]:
    def engine(dsn: str) -> tuple[Sequence[str], Mapping[str, str]]:
        return processes.python("benchmarks.contestants.noop"), noop.settings(dsn, batch_size=WAVE)

    def loop(mode: str, dsn: str) -> tuple[Sequence[str], Mapping[str, str]]:
        return processes.python("benchmarks.contestants.queue_loop", mode, dsn, str(WAVE)), {}

    return [
        Entrant(name, f"waves of {WAVE}", partial(_round, server, "items", command, entries, stamped))
        for name, command, stamped in (
            ("instep", engine, True),
            ("hand-written loop", partial(loop, "full"), True),
            ("claim and removal alone", partial(loop, "bare"), False),
        )
    ]


def _pgbench(server: postgres.Server, script: Path, worked: int, entries: int) -> Entrant:
    async def round() -> Mapping[str, Any]:
        dsn = await server.create("round", "items")
        before = await activity.begin(dsn)
        command = pgbench_queue.command(dsn, script, min(worked, entries - WAVE))
        ended = await processes.run(command, pgbench_queue.ENVIRONMENT)
        stretch = await activity.since(dsn, before)
        done, rate = pgbench_queue.read(ended.out)
        if await _count(dsn, "instep.outbox_items_noop") != entries - done:
            raise AssertionError("pgbench removed other entries than it says")
        return _told(rate, done, ended, ended.cpu_seconds, stretch)

    return Entrant("pgbench", f"one row at a time, {pgbench_queue.CLIENTS} clients, prepared", round)


async def _peers(bench: Bench, server: postgres.Server, peer: Environment) -> list[Entrant]:
    bench.say(f"queue: {peer.title}" + ("" if peer.installed() else " is being installed"))
    await peer.install()
    jobs, script = bench.sized(JOBS[peer.name], 200), f"{peer.name}_worker"
    made = await server.create(peer.name)
    for what in (["create", postgres.uri(made)], ["fill", postgres.uri(made), str(jobs)]):
        await processes.run(peer.script(script, *what), peer.variables)
    async with await psycopg.AsyncConnection.connect(made, autocommit=True) as conn:
        await conn.execute("vacuum analyze")

    def drain(numbers: Sequence[int], dsn: str) -> tuple[Sequence[str], Mapping[str, str]]:
        return peer.script(script, "drain", postgres.uri(dsn), *map(str, numbers)), peer.variables

    settings = list(SETTINGS[peer.name].items())[: 1 if bench.quick else None]
    return [
        Entrant(
            f"{peer.title} {ASYNCHRONOUS}" if asynchronous else peer.title,
            setting,
            partial(_round, server, peer.name, partial(drain, numbers), jobs, False, TABLES[peer.name], asynchronous),
        )
        for asynchronous in (False, True)
        for setting, numbers in settings
    ]  # fmt: skip


async def _round(
    server: postgres.Server,
    template: str,
    command: Callable[[str], tuple[Sequence[str], Mapping[str, str]]],
    entries: int,
    stamped: bool,
    table: str = "instep.outbox_items_noop",
    asynchronous: bool = False,
) -> Mapping[str, Any]:
    """One drain of a fresh copy. What was to be drained is gone; what was to be stamped is, with the right hash."""
    dsn = await server.create("round", template)
    if asynchronous:
        await _execute(dsn, "alter database round set synchronous_commit = off")
    before = await activity.begin(dsn)
    called, environment = command(dsn)
    ended = await processes.run(called, environment)
    stretch = await activity.since(dsn, before)
    if left := await _count(dsn, table):
        raise AssertionError(f"{left} of {entries} are left in {table}")
    if stamped:
        right = f"items i join instep.stamp_items_noop s on s.key_1 = i.id and s.content_hash = {noop.HASH}"
        if (found := await _count(dsn, right)) != entries:
            raise AssertionError(f"{found} of {entries} have the right stamp")
    said = ended.json()
    return _told(entries / (said["ended"] - said["began"]), entries, ended, said["cpu"], stretch)


def _told(
    rate: float, entries: int, ended: processes.Ended, cpu: float, stretch: activity.Stretch
) -> Mapping[str, Any]:
    return {
        "rate": rate,
        "entries": entries,
        "cpu_microseconds_each": cpu / entries * 1e6,
        "peak_megabytes": ended.peak_bytes / processes.MEGABYTE,
        "stretch": stretch.as_dict(),
        **stretch.each(entries),
    }


async def _count(dsn: str, table: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(sql.SQL("select count(*) from {}").format(sql.SQL(table)))).fetchone()
        assert row is not None
        return int(row[0])


async def _execute(dsn: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(sql.SQL(statement))


async def _part(
    bench: Bench,
    server: postgres.Server,
    entrants: Sequence[Entrant],
    best: Mapping[str, Entrant],
    entries: int,
) -> Part:
    mine, loop = best["instep"], best["hand-written loop"]
    figures = [
        Figure("instep", mine.rate, "entries/s"),
        Figure("hand-written loop of the same statements", loop.rate, "entries/s"),
        Figure("instep / hand-written loop", mine.rate / loop.rate, "×", at_least=GOAL_LOOP),
        Figure("instep / pgbench, one row at a time", mine.rate / best["pgbench"].rate, "×"),
    ]
    for peer, goal in ((PROCRASTINATE, GOAL_PEER), (PGQUEUER, None)):
        for name in (peer.title, f"{peer.title} {ASYNCHRONOUS}"):
            if name in best:
                figures += [
                    Figure(f"{name}, at its best ({best[name].setting})", best[name].rate, "jobs/s"),
                    Figure(f"instep / {name}", mine.rate / best[name].rate, "×",
                           at_least=goal if name == peer.title else None),
                ]  # fmt: skip
    figures += [
        Figure("instep, WAL of each entry", mine.of("wal_bytes"), "bytes"),
        Figure("the same without full-page images", mine.of("wal_bytes_without_images"), "bytes"),
        Figure("instep, commits for 1,000 entries", mine.of("commits") * 1000, ""),
    ]
    return Part(
        "queue",
        f"No-op entries drained by one worker process: {entries:,} of ours in waves of {WAVE}; peers work fewer, they are "
        "slower. Each round begins with a fresh copy of a database in which all waits, and with a checkpoint.",
        figures,
        [
            Table(
                "Every setting (two of each contestant took turns, the others ran once); bytes and commits of one entry",
                ("contestant", "setting", "rounds", "entries", "a second, median", "best", "CPU µs of the worker", "of PostgreSQL",
                 "WAL bytes", "without images", "commits", "MB"),
                [
                    [one.contestant, one.setting, len(one.rounds), one.of("entries"), one.rate, one.best,
                     one.of("cpu_microseconds_each"), one.of("server_cpu_microseconds"), one.of("wal_bytes"), one.of("wal_bytes_without_images"),
                     one.of("commits"), one.of("peak_megabytes")]
                    for one in entrants
                ],
            )
        ],
        [
            "after each round: nothing is left; of ours and the loop's, each row has the stamp of its content",
            "the hand-written loop: claim with token, load of content and hash, lock, stamp, fenced removal, on two "
            "connections, the next wave claimed while the last is committed; no heartbeat, failures, absorb or sweep",
            "the engine, the loops and pgbench commit asynchronously; peers as they come and, apart, with "
            "synchronous_commit = off for their database",
            *([] if bench.with_peers else ["peers did not take part (--without-peers)"]),
        ],
        rounds={one.name: list(one.rounds) for one in entrants},
        settings=server.settings | await environments.versions(*((PROCRASTINATE, PGQUEUER) if bench.with_peers else ())),
    )  # fmt: skip
