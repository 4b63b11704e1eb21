"""What a worker costs that has nothing to do: statements a second, and CPU of the worker and of its server processes.

instep's worker follows a table that is in step, peers wait for jobs, each at its default settings and in a database of its
own on one server, side by side in the same seconds. Statements are counted by pg_stat_statements (everything, BEGIN and
SET too); CPU of PostgreSQL is that of the backends that serve the database's sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from statistics import median
from typing import Any

import psutil
import psycopg

from benchmarks import documents, environments, model, postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import noop, ours
from benchmarks.environments import PGQUEUER, PROCRASTINATE
from benchmarks.report import Figure, Part, Table

SECONDS, SETTLE_SECONDS = 60, 8
ROWS = 10_000
SAMPLE_SECONDS = 1.0
STATISTICS = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all"}
CALLS = """select coalesce(sum(s.calls), 0)::bigint from pg_stat_statements s join pg_database d on d.oid = s.dbid
    where d.datname = %s"""
COMMITS = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
BACKENDS = "select pid from pg_stat_activity where datname = %s and backend_type = 'client backend'"
Command = tuple[str, Sequence[str], Mapping[str, str]]  # database, what is run, its environment


async def measure(bench: Bench) -> Part:
    seconds, settle = max(4, int(SECONDS * bench.scale)), max(4, int(SETTLE_SECONDS * bench.scale))
    peers = (PROCRASTINATE, PGQUEUER) if bench.with_peers else ()
    rounds: dict[str, list[dict[str, float]]] = {}
    async with postgres.server(**STATISTICS) as server, model.started() as served:
        async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as conn:
            await conn.execute("create extension if not exists pg_stat_statements")
            contestants = await _prepared(bench, server, served)
            for peer in peers:
                bench.say(f"idle: {peer.title}" + ("" if peer.installed() else " is being installed"))
                await peer.install()
                dsn, script = postgres.uri(await server.create(peer.name)), f"{peer.name}_worker"
                await processes.run(peer.script(script, "create", dsn), peer.variables)
                contestants[peer.title] = (peer.name, peer.script(script, "idle", dsn), peer.variables)
            async with AsyncExitStack() as stack:
                workers = {
                    name: await stack.enter_async_context(processes.background(command, env))
                    for name, (_, command, env) in contestants.items()
                }
                await asyncio.sleep(settle)
                for _ in range(bench.rounds):
                    watched = {name: Watched(conn, contestants[name][0], workers[name]) for name in workers}
                    await _window(watched, seconds)
                    for name, one in watched.items():
                        rounds.setdefault(name, []).append(await one.told())
                    bench.say(
                        "idle: statements a second: "
                        + ", ".join(f"{name} {told[-1]['statements']:.1f}" for name, told in rounds.items())
                    )
                for worker in workers.values():
                    await worker.end()
    return await _part(bench, server, rounds, seconds)


async def _prepared(bench: Bench, server: postgres.Server, served: model.Model) -> dict[str, Command]:
    rows = bench.sized(ROWS, 1200)
    dsn = await server.create("docs")
    await documents.create(dsn, rows)
    await ours.create(dsn, served.url)
    given = ours.settings(dsn, served.url)
    del given["INSTEP_SWEEP_EVERY_SECONDS"]  # what a user has: a small table is swept by each run
    await processes.run(processes.python("benchmarks.contestants.ours"), given)
    empty = await server.create("items")
    async with await psycopg.AsyncConnection.connect(empty, autocommit=True) as conn:
        await noop.create(conn, rows, swept=False)
    return {
        "instep, a table with vectors": ("docs", processes.python("benchmarks.contestants.ours", "--follow"), given),
        "instep, no-op": ("items", processes.python("benchmarks.contestants.noop", "--follow"), noop.settings(empty)),
    }  # fmt: skip


class Watched:
    """One contestant in one window. Another session asks, in another database."""

    def __init__(self, conn: psycopg.AsyncConnection, database: str, worker: processes.Background) -> None:
        self._conn, self._database, self._worker = conn, database, worker
        self._backends: dict[int, tuple[float, float]] = {}  # pid -> CPU when first and last seen
        self._began: dict[str, float] = {}

    async def begin(self) -> None:
        self._began = await self._now()
        await self.look()

    async def look(self) -> None:
        for (pid,) in await (await self._conn.execute(BACKENDS, (self._database,))).fetchall():
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                used = times.user + times.system
                first, _ = self._backends.get(pid, (used, used))
                self._backends[pid] = (first, used)

    async def told(self) -> dict[str, float]:
        await self.look()
        ended = await self._now()
        passed = ended["time"] - self._began["time"]
        return {
            "statements": (ended["calls"] - self._began["calls"]) / passed,
            "transactions": (ended["commits"] - self._began["commits"]) / passed,
            "worker_cpu": (ended["cpu"] - self._began["cpu"]) / passed,
            "server_cpu": sum(last - first for first, last in self._backends.values()) / passed,
            "sessions": len(self._backends),
        }

    async def _now(self) -> dict[str, float]:
        found = {"time": time.monotonic(), "cpu": self._worker.cpu_seconds()}
        for name, query in (("calls", CALLS), ("commits", COMMITS)):
            row = await (await self._conn.execute(query, (self._database,))).fetchone()
            assert row is not None
            found[name] = float(row[0])
        return found


async def _window(watched: Mapping[str, Watched], seconds: float) -> None:
    for one in watched.values():
        await one.begin()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(SAMPLE_SECONDS, left))
        for one in watched.values():
            await one.look()


async def _part(
    bench: Bench, server: postgres.Server, rounds: Mapping[str, list[dict[str, float]]], seconds: int
) -> Part:
    def of(name: str, value: str) -> float:
        return median(one[value] for one in rounds[name])

    mine, peers = next(iter(rounds)), [name for name in rounds if not name.startswith("instep")]
    figures = [
        Figure("instep, statements a second", of(mine, "statements"), ""),
        Figure("instep, CPU of the worker", of(mine, "worker_cpu") * 100, "% of a core"),
        Figure("instep, CPU of PostgreSQL", of(mine, "server_cpu") * 100, "% of a core"),
    ]
    for name in peers:
        both, theirs = (of(one, "worker_cpu") + of(one, "server_cpu") for one in (mine, name))
        figures += [
            Figure(
                f"statements, instep / {name}",
                of(mine, "statements") / max(of(name, "statements"), 0.01),
                "×",
            ),
            Figure(f"CPU of worker and PostgreSQL, instep / {name}", both / max(theirs, 0.0001), "×"),
        ]
    head = (
        "worker",
        "statements/s",
        "transactions/s",
        "CPU of the worker, %",
        "CPU of PostgreSQL, %",
        "sessions",
    )
    rows: list[list[Any]] = [
        [name, of(name, "statements"), of(name, "transactions"), of(name, "worker_cpu") * 100,
         of(name, "server_cpu") * 100, of(name, "sessions")]
        for name in rounds
    ]  # fmt: skip
    given: list[Any] = [PROCRASTINATE, PGQUEUER] if bench.with_peers else []
    return Part(
        "idle",
        f"Nothing to do for {seconds} s, all side by side on one server, default settings (ours polls each quarter of a second, "
        "procrastinate and pgqueuer LISTEN and poll each 5 and 30 s).",
        figures,
        [Table("Medians of the rounds, per cent of one core", head, rows)],
        [] if bench.with_peers else ["peers did not take part (--without-peers)"],
        rounds=dict(rounds),
        settings=server.settings | await environments.versions(*given),
    )
