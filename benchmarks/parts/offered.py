"""Steady offered load: changes come at a fixed rate, a worker follows; how long until each is in step.

Burn-down flatters a queue; this does not. Every change is a transaction of its own, of a row of its own, and is due at
its time whether the ones before it are done or not. Latency is from the commit of the user's write to the commit of the
stamp of that content, both by the server's own commit timestamps: nothing is asked of the server for it meanwhile. The
warm-up is in no figure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import orjson
import psycopg
from psycopg import sql

from benchmarks import activity, documents, environments, model, postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import noop, ours, writer
from benchmarks.environments import PGQUEUER, PROCRASTINATE, Environment
from benchmarks.report import Figure, Part, Table
from benchmarks.rounds import percentile
from instep.engine.declared import read_declaration

SECONDS, WARM_UP_SECONDS = 30, 8
ROWS = 24_000
IN_STEP_SECONDS = 60  # for what is left when the writes have ended
INDEX_SECONDS = 300
SAMPLE_SECONDS = 0.5
GOAL_P99, GOAL_WAL = 1.0, 3000.0
GOAL_OFFERED = 0.98  # below it, the rate was not offered: the machine could not write so fast
PEER_RATE = 500
PEERS = ((PROCRASTINATE, "procrastinate_jobs", ("20",)), (PGQUEUER, "pgqueuer", ("100",)))


@dataclass(slots=True)
class Scenario:
    """`template` is a database in which everything is in step. Rounds hold what one offered stretch told."""

    name: str
    rate: int
    template: str
    table: str
    column: str
    derivation: str
    worker: Sequence[str]
    environment: Mapping[str, str]  # without the database
    rows: int
    found: str = ""  # for `documents.verify`
    own_write: float = 0.0  # WAL bytes of one user's write alone
    rounds: list[Mapping[str, Any]] = field(default_factory=list)

    def of(self, name: str) -> float:
        return median(float(one[name]) for one in self.rounds)


async def measure(bench: Bench) -> Part:
    seconds, warm_up = max(3, int(SECONDS * bench.scale)), max(2, int(WARM_UP_SECONDS * bench.scale))
    peers = [peer for peer, _, _ in PEERS] if bench.with_peers else []
    async with postgres.server(**postgres.SETTINGS) as server, model.started() as served:
        scenarios = await _prepared(bench, server, served)
        for scenario in scenarios:
            scenario.own_write = await _own_write(server, scenario, min(2000, scenario.rows))
        told: dict[str, list[Mapping[str, Any]]] = {}
        for peer in peers:
            bench.say(f"offered: {peer.title}" + ("" if peer.installed() else " is being installed"))
            await peer.install()
            made = postgres.uri(await server.create(peer.name))
            await processes.run(peer.script(f"{peer.name}_worker", "create", made), peer.variables)
            told[peer.title] = []
        for _ in range(bench.rounds):
            for scenario in scenarios:
                scenario.rounds.append(await _round(server, scenario, seconds, warm_up))
                _say(bench, scenario.name, scenario.rounds[-1])
            for peer, table, arguments in PEERS if peers else ():
                told[peer.title].append(await _peer(server, peer, table, arguments, seconds, warm_up))
                _say(bench, peer.title, told[peer.title][-1])
    return await _part(bench, server, scenarios, told, seconds, peers)


def _say(bench: Bench, name: str, round: Mapping[str, Any]) -> None:
    bench.say(f"offered: {name}: p50 {round['p50']:.3f} s, p99 {round['p99']:.3f} s")


async def _prepared(bench: Bench, server: postgres.Server, served: model.Model) -> list[Scenario]:
    rows = bench.sized(ROWS, 3500)
    dsn = await server.create("items")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await noop.create(conn, rows, swept=False)
    dsn = await server.create("plain")
    await documents.create(dsn, rows)
    chunk = await ours.create(dsn, served.url)
    bench.say(f"offered: {rows:,} rows get their vectors")
    await processes.run(processes.python("benchmarks.contestants.ours"), ours.settings(dsn, served.url))
    await _execute(dsn, "vacuum analyze")
    indexed = await server.create("indexed", "plain")
    bench.say("offered: and an index")
    following = processes.python("benchmarks.contestants.ours", "--follow")
    async with processes.background(following, ours.settings(indexed, served.url)) as worker:
        await _built(indexed, chunk)
        await worker.end()
    without = ours.settings("", served.url)
    scenarios = [
        Scenario("no-op", 500, "items", "items", "title", noop.DERIVATION,
                 processes.python("benchmarks.contestants.noop", "--follow"), noop.settings(""), rows),
        Scenario("vectors, no index", 500, "plain", "docs", "body", ours.DERIVATION,
                 [*following, "--no-index"], without, rows, ours.found(chunk)),
        Scenario("vectors, HNSW", 200, "indexed", "docs", "body", ours.DERIVATION,
                 following, without, rows, ours.found(chunk)),
    ]  # fmt: skip
    return [scenarios[0], scenarios[2]] if bench.quick else scenarios


async def _built(dsn: str, chunk: str) -> None:
    deadline = time.monotonic() + INDEX_SECONDS
    valid = (
        "select count(*) from pg_index i join pg_class c on c.oid = i.indexrelid"
        f" where i.indrelid = '{chunk}'::regclass and c.relname like '%hnsw' and i.indisvalid"
    )
    while not await _one(dsn, valid):
        if time.monotonic() > deadline:
            raise processes.Failed("the worker built no index")
        await asyncio.sleep(0.25)


async def _own_write(server: postgres.Server, scenario: Scenario, changes: int) -> float:
    """WAL bytes of one change that nobody captures: what the user pays anyway. Without full-page images, of which a
    shorter stretch has more for each change."""
    dsn = await server.create("round", scenario.template)
    await _execute(dsn, f"alter table {scenario.table} disable trigger user")
    before = await activity.begin(dsn)
    await processes.run(_writer(dsn, scenario, 5000, changes, 0))
    return (await activity.since(dsn, before)).each(changes)["wal_bytes_without_images"]


def _writer(dsn: str, scenario: Scenario, rate: int, changes: int, first: int) -> list[str]:
    return processes.python(
        "benchmarks.contestants.writer", dsn, scenario.table, scenario.column,
        str(rate), str(changes), str(first), str(scenario.rows),
    )  # fmt: skip


async def _round(
    server: postgres.Server, scenario: Scenario, seconds: int, warm_up: int
) -> Mapping[str, Any]:
    dsn = await server.create("round", scenario.template)
    warm, changes = scenario.rate * warm_up, scenario.rate * seconds
    if warm + changes > scenario.rows:
        raise AssertionError(f"{warm + changes} changes are more than the {scenario.rows} rows")
    env = {**scenario.environment, "INSTEP_DATABASE_URL": dsn}
    async with processes.background(scenario.worker, env) as worker:
        await asyncio.sleep(1.5)  # its start: imports, connections, the first look
        await processes.run(_writer(dsn, scenario, scenario.rate, warm, 0))
        before, cpu = await activity.begin(dsn), worker.cpu_seconds()
        samples: list[int] = []
        sampling = asyncio.create_task(_sample(dsn, scenario, samples))
        wrote = (await processes.run(_writer(dsn, scenario, scenario.rate, changes, warm))).json()
        cpu = worker.cpu_seconds() - cpu
        dead = await activity.dead_tuples(dsn)
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        drained = await _drained(dsn, scenario)
        stretch = await activity.since(dsn, before)
        await worker.end()
    latencies = await _latencies(dsn, scenario, warm, changes)
    if scenario.found:
        await documents.verify(dsn, scenario.rows, scenario.found)
    each = stretch.each(changes)
    third = max(1, len(samples) // 3)
    return {
        "p50": percentile(latencies, 50),
        "p99": percentile(latencies, 99),
        "slowest": max(latencies),
        "offered": wrote["rate"],
        "writer_late_p99": wrote["late"],
        "completed": changes / (wrote["seconds"] + drained),
        "worker_cores": cpu / wrote["seconds"],
        "backlog_growth": mean(samples[-third:]) - mean(samples[:third]),
        "backlog_largest": max(samples),
        "dead_tuples": sum(one["dead"] for one in dead.values()),
        "dead": dead,
        "stretch": stretch.as_dict(),
        **each,
        "commits": each["commits"] - 1,  # the user's own
    }


async def _sample(dsn: str, scenario: Scenario, into: list[int]) -> None:
    """In one transaction without a snapshot between its statements: it holds nothing back and commits nothing."""
    waiting = _waiting(scenario)
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        while True:
            row = await (await conn.execute(sql.SQL(waiting))).fetchone()
            assert row is not None
            into.append(row[0])
            await asyncio.sleep(SAMPLE_SECONDS)


def _waiting(scenario: Scenario) -> str:
    suffix = scenario.derivation.replace(".", "_")
    return f"select (select count(*) from instep.change_{scenario.table}) + (select count(*) from instep.outbox_{suffix})"


async def _drained(dsn: str, scenario: Scenario) -> float:
    """Seconds until nothing waits any more."""
    began = time.monotonic()
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        while True:
            row = await (await conn.execute(sql.SQL(_waiting(scenario)))).fetchone()
            assert row is not None
            if not row[0]:
                return time.monotonic() - began
            if time.monotonic() - began > IN_STEP_SECONDS:
                raise AssertionError(f"{scenario.name}: {row[0]} changes were not in step after a minute")
            await asyncio.sleep(0.02)


async def _latencies(dsn: str, scenario: Scenario, first: int, changes: int) -> list[float]:
    """Seconds of each change. Raises AssertionError where a row's stamp is not of its content."""
    ids = [writer.row(number, scenario.rows) for number in range(first, first + changes)]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        hashed = (await read_declaration(conn, scenario.derivation)).hash
        query = sql.SQL(
            "select extract(epoch from pg_xact_commit_timestamp(s.xmin) - pg_xact_commit_timestamp(t.xmin))::float8"
            " from {table} t join {stamp} s on s.key_1 = t.id where t.id = any(%s::bigint[]) and s.content_hash = {hash}"
        ).format(
            table=sql.Identifier(scenario.table),
            stamp=sql.Identifier("instep", f"stamp_{scenario.derivation.replace('.', '_')}"),
            hash=sql.SQL(hashed.replace("%", "%%")),
        )
        found = [row[0] for row in await (await conn.execute(query, (ids,))).fetchall()]
    if len(found) != changes or min(found) <= 0:
        raise AssertionError(
            f"{scenario.name}: {len(found)} of {changes} changes are in step, the fastest in {min(found)} s"
        )
    return found


async def _peer(
    server: postgres.Server,
    peer: Environment,
    table: str,
    arguments: Sequence[str],
    seconds: int,
    warm_up: int,
) -> Mapping[str, Any]:
    """The same rate of no-op jobs, each enqueued in a transaction of its own; from the enqueueing to the job's start,
    which is in the peer's favour: what comes after it is not in."""
    dsn = await server.create("round", peer.name)
    script, place = f"{peer.name}_worker", postgres.uri(dsn)
    jobs, warm = PEER_RATE * (seconds + warm_up), PEER_RATE * warm_up
    before = await activity.begin(dsn)
    async with processes.background(
        peer.script(script, "follow", place, *arguments), peer.variables
    ) as worker:
        await asyncio.sleep(1.5)
        offer = peer.script(script, "offer", place, str(PEER_RATE), str(jobs), str(warm))
        began = time.monotonic()
        wrote = (await processes.run(offer, peer.variables)).json()
        left = await _one(dsn, f"select count(*) from {table}")
        undone = left
        while undone and time.monotonic() - began < seconds + IN_STEP_SECONDS:
            await asyncio.sleep(0.1)
            undone = await _one(dsn, f"select count(*) from {table}")
        took = time.monotonic() - began
        stretch = await activity.since(dsn, before)
        said = orjson.loads((await worker.end()).strip().splitlines()[-1])
    latencies = said["latencies"] or [float("inf")]
    return {
        "p50": percentile(latencies, 50),
        "p99": percentile(latencies, 99),
        "slowest": max(latencies),
        "offered": wrote["rate"],
        "completed": (jobs - undone) / took,
        "left_when_the_offer_ended": left,
        "undone": undone,
        "stretch": stretch.as_dict(),
        **stretch.each(max(1, jobs - undone)),
    }


async def _one(dsn: str, statement: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(sql.SQL(statement))).fetchone()
        assert row is not None
        return int(row[0])


async def _execute(dsn: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(sql.SQL(statement))


async def _part(
    bench: Bench,
    server: postgres.Server,
    scenarios: Sequence[Scenario],
    told: Mapping[str, Sequence[Mapping[str, Any]]],
    seconds: int,
    peers: Sequence[Environment],
) -> Part:
    figures = [
        Figure(f"{one.name}, {one.rate} changes/s: write to in step, p99", one.of("p99"), "s",
               at_most=GOAL_P99 if one.found else None)
        for one in scenarios
    ]  # fmt: skip
    bare = scenarios[0]
    figures += [
        Figure("WAL of each entry without vectors, the user's own write included", bare.of("wal_bytes"), "bytes",
               at_most=GOAL_WAL),
        Figure("of these, the user's own write without full-page images", bare.own_write, "bytes"),
        Figure("of these, full-page images", bare.of("wal_bytes") - bare.of("wal_bytes_without_images"), "bytes"),
        Figure("commits for each entry, the user's not counted", bare.of("commits"), ""),
        Figure("the lowest rate offered, of what was asked", min(one.of("offered") / one.rate for one in scenarios), "×",
               at_least=GOAL_OFFERED),
        Figure("backlog, last third less first third, at most", max(one.of("backlog_growth") for one in scenarios),
               "entries"),
    ]  # fmt: skip
    for title, rounds in told.items():
        p99 = median(float(one["p99"]) for one in rounds)
        figures += [
            Figure(f"{title}, {PEER_RATE} no-op jobs/s: enqueued to begun, p99", p99, "s"),
            Figure(f"p99 of {title} / of our no-op", p99 / bare.of("p99"), "×"),
        ]
    head = ("", "changes/s", "p50 s", "p99 s", "slowest s", "completed/s", "WAL bytes", "without images", "own write, without images",
            "commits", "backlog, growth", "largest", "dead tuples", "worker, cores")  # fmt: skip
    rows: list[list[Any]] = [
        [one.name, one.of("offered"), one.of("p50"), one.of("p99"), one.of("slowest"), one.of("completed"),
         one.of("wal_bytes"), one.of("wal_bytes_without_images"), one.own_write, one.of("commits"),
         one.of("backlog_growth"), one.of("backlog_largest"), one.of("dead_tuples"), one.of("worker_cores")]
        for one in scenarios
    ]  # fmt: skip
    for title, rounds in told.items():

        def of(name: str, rounds: Sequence[Mapping[str, Any]] = rounds) -> float:
            return median(float(one[name]) for one in rounds)

        rows.append(
            [title, of("offered"), of("p50"), of("p99"), of("slowest"), of("completed"), of("wal_bytes"),
             of("wal_bytes_without_images"), "", of("commits"), "", of("left_when_the_offer_ended"), "", ""]
        )  # fmt: skip
    checkpoints = sum(one["stretch"]["checkpoints"] for scenario in scenarios for one in scenario.rounds)
    return Part(
        "offered",
        f"Changes at a fixed rate for {seconds} s after a warm-up, each a transaction and a row of its own, all over a table of "
        f"{scenarios[0].rows:,} rows; a worker with --follow at its default settings, a model that answers at once.",
        figures,
        [Table("Medians of the rounds; bytes and commits of one change", head, rows)],
        [
            "after each round: every changed row has the stamp of its content, written after the change; every vector is "
            "the server's answer for its row's text",
            f"a checkpoint just before each stretch, so that full-page images are at their most; {checkpoints} more "
            "during all of them; images are counted in, by pg_walinspect",
            "dead tuples: of all instep's tables at the end of the stretch, autovacuum as it comes",
            *([] if peers else ["peers did not take part (--without-peers)"]),
        ],
        rounds={**{one.name: one.rounds for one in scenarios}, **told},
        settings=server.settings | await environments.versions(*peers),
    )  # fmt: skip
