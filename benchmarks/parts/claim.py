"""Claims of 500: flat from ten thousand to three million waiting entries, and while an old snapshot is held.

The outbox alone, through the engine's own claim and commit; no model and no outputs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import psycopg
from psycopg import sql

from benchmarks import postgres
from benchmarks.bench import Bench
from benchmarks.report import Figure, Part, Table
from benchmarks.rounds import quarters
from instep.clock import SYSTEM
from instep.database.migrations import migrate
from instep.engine import outbox as outbox_module
from instep.engine.commit import Change, Committer
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.install import install
from instep.engine.outbox import Outbox
from instep.engine.ports import Conn, Entry
from instep.testing.toy import ToyDerivation

WAVE = 500
SMALL, LARGE, DRAINED = 10_000, 3_000_000, 200_000
CLAIMS = 12  # of one round: what ten thousand entries allow with most of them still waiting
GOAL_RATIO, GOAL_GROWTH = 2.0, 3.0


@dataclass
class Queue:
    """One outbox with nothing behind it."""

    conn: Conn
    declaration: Declaration
    target: Target

    @classmethod
    async def make(cls, conn: Conn, name: str) -> Queue:
        table = sql.Identifier(name)
        await conn.execute(sql.SQL("create table {} (id bigint primary key, title text)").format(table))
        row = await (await conn.execute("select %s::regclass::oid", (name,))).fetchone()
        assert row is not None
        source = Source(name, row[0], "public", name, (KeyColumn("id", "bigint"),))
        declaration = Declaration(
            f"{name}.embed", source, 1, ("title",), "instep.content_hash(instep.part(title))", catalogue="toy"
        )
        made = await install(conn, source, [declaration], [Target(0, declaration.name, "none", "reading")])
        return cls(conn, made.declarations[0], made.targets[0])

    async def fill(self, entries: int) -> None:
        """Entries as an absorb leaves them: in key order, the newest with the highest key."""
        await self.conn.execute(sql.SQL("truncate {}").format(self.declaration.outbox))
        await self.conn.execute(
            sql.SQL(
                "insert into {} (key_1, target, sort_key) select g, {}, now() - ({} - g) * interval '1 s'"
                " from generate_series(1, {}) g"
            ).format(self.declaration.outbox, self.target.name, entries, entries)
        )
        await self.conn.execute(sql.SQL("vacuum analyze {}").format(self.declaration.outbox))

    def outbox(self) -> Outbox:
        return Outbox(self.declaration, self.target, SYSTEM, lease_seconds=900, max_attempts=3)

    def committer(self) -> Committer:
        return Committer(self.declaration, self.target, ToyDerivation(self.declaration, "title").sink)


async def measure(bench: Bench) -> Part:
    small, large, drained = bench.sized(SMALL, 4000), bench.sized(LARGE, 8000), bench.sized(DRAINED, 4000)
    async with postgres.server() as server:
        await migrate(server.dsn)
        async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as conn:
            bench.say(f"claim: filling {large:,} entries")
            queues = {"small": await Queue.make(conn, "small"), "large": await Queue.make(conn, "large")}
            await queues["large"].fill(large)
            times = await _claims(bench, queues, small)
            bench.say(f"claim: draining {drained:,} under an old snapshot, with the cursor")
            queue = await Queue.make(conn, "drained")
            with_cursor = await _drain(server.dsn, queue, drained, restart_every=outbox_module.RESTART_EVERY)
            bench.say("claim: the same without the cursor")
            without = await _drain(server.dsn, queue, drained, restart_every=1)
    few, many = median(times["small"]), median(times["large"])
    kept, lost = quarters(with_cursor), quarters(without)
    return Part(
        "claim",
        f"Claims of {WAVE} by the engine's own statement; deletes by the engine's own commit, with no outputs.",
        [
            Figure(f"claim at {small:,} waiting, median", few * 1000, "ms"),
            Figure(f"claim at {large:,} waiting, median", many * 1000, "ms"),
            Figure("ratio of these", many / few, "×", at_most=GOAL_RATIO),
            Figure("old snapshot: last quarter / first quarter", kept[3] / kept[0], "×", at_most=GOAL_GROWTH),
            Figure("the same without the cursor", lost[3] / lost[0], "×"),
        ],
        [
            Table(
                f"Claim while another transaction holds an old snapshot, drain of {drained:,}, median per quarter (ms)",
                ("", "first", "second", "third", "last"),
                [
                    ["with the cursor", *(value * 1000 for value in kept)],
                    ["without", *(value * 1000 for value in lost)],
                ],
            )
        ],
        rounds={
            "small": times["small"],
            "large": times["large"],
            "with_cursor": with_cursor,
            "without": without,
        },
        settings=server.settings,
    )


async def _claims(bench: Bench, queues: dict[str, Queue], small: int) -> dict[str, list[float]]:
    """Seconds of each claim, sizes taking turns; each round begins at the top with nothing leased."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    for round in range(bench.rounds + 1):
        await queues["small"].fill(small)
        for name, queue in queues.items():
            outbox, committer = queue.outbox(), queue.committer()
            waves: list[tuple[int, list[Entry]]] = []
            for _ in range(min(CLAIMS, small // WAVE)):
                token, began = SYSTEM.token(), time.perf_counter()
                waves.append((token, await outbox.claim(queue.conn, WAVE, token)))
                if round:  # the first one warms up
                    times[name].append(time.perf_counter() - began)
            if any(not entries for _, entries in waves):
                raise AssertionError("a claim came back empty")
            for token, entries in waves:
                await committer.commit(queue.conn, Change(token, entries))
    return times


async def _drain(dsn: str, queue: Queue, entries: int, restart_every: int) -> list[float]:
    """Seconds of each claim of a drain, while another transaction holds a snapshot from before it."""
    await queue.fill(entries)
    outbox, committer, times, done = queue.outbox(), queue.committer(), [], 0
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        await other.execute("begin isolation level repeatable read")
        await other.execute("select count(*) from pg_class")
        usual, outbox_module.RESTART_EVERY = outbox_module.RESTART_EVERY, restart_every
        try:
            while True:
                token, began = SYSTEM.token(), time.perf_counter()
                claimed = await outbox.claim(queue.conn, WAVE, token)
                took = time.perf_counter() - began
                if not claimed:
                    break
                times.append(took)
                done += (await committer.commit(queue.conn, Change(token, claimed))).finished
        finally:
            outbox_module.RESTART_EVERY = usual
        await other.execute("rollback")
    if done != entries:
        raise AssertionError(f"{done} of {entries} were drained")
    return times
