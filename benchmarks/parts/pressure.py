"""What slows queues down elsewhere: old snapshots, idle transactions, piles of dead letters and of future entries.

A live cycle, over and over: rows change (not timed), the change log is absorbed, as many entries are claimed and
removed (nothing is loaded or made in between: it is not the rate of a worker, but of what pressure slows). By the
engine's own absorb, claim and commit, one after the other on one connection, with no model and no outputs, at several
numbers of waiting entries. Each case has a database of its own (what another session holds holds back nothing in other
databases), and takes turns with the others cycle by cycle, so that whatever else the machine does hits all alike. After
each round all is let go and vacuumed.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import postgres
from benchmarks.bench import Bench
from benchmarks.report import Figure, Part, Table
from instep.clock import SYSTEM
from instep.database.migrations import migrate
from instep.engine.absorb import Absorber
from instep.engine.commit import Change, Committer
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.install import install
from instep.engine.outbox import Outbox
from instep.engine.ports import Conn
from instep.testing.toy import ToyDerivation

WAVE, PIECE = 500, 2000
WAITING = (10_000, 1_000_000, 3_000_000)
LAID_BY = 1_000_000  # dead letters, and as many entries that must wait for their time
STEP, CYCLES = 10_000, 10  # changes absorbed, and entries claimed and removed, in each cycle
GOAL = 0.7
HELD = {
    "calm": "",
    "an old snapshot": "begin isolation level repeatable read; select count(*) from pg_class",
    "an idle transaction": "begin; select pg_current_xact_id()",
    "dead letters and future entries": "",
}
CASES = tuple(HELD)[1:]
MEASURES = ("drain", "claim", "absorb")


@dataclass
class Live:
    """A source whose rows change, and an outbox in which others wait."""

    conn: Conn
    declaration: Declaration
    target: Target
    rows: int

    @classmethod
    async def make(cls, conn: Conn, name: str, rows: int, first: int) -> Live:
        table = sql.Identifier(name)
        await conn.execute(
            sql.SQL("create table {} (id bigint primary key, title text, posted timestamptz)").format(table)
        )
        await conn.execute(
            sql.SQL("insert into {} select g, 'title ' || g, now() from generate_series({}::bigint, {}::bigint) g")
            .format(table, first, first + rows - 1)
        )  # fmt: skip
        row = await (await conn.execute("select %s::regclass::oid", (name,))).fetchone()
        assert row is not None
        source = Source(name, row[0], "public", name, (KeyColumn("id", "bigint"),))
        declaration = Declaration(
            f"{name}.embed", source, 1, ("title",), "instep.content_hash(instep.part(title))", newest="posted",
            catalogue="toy",
        )  # fmt: skip
        made = await install(conn, source, [declaration], [Target(0, declaration.name, "none", "reading")])
        return cls(conn, made.declarations[0], made.targets[0], rows)

    async def fill(self, waiting: int) -> None:
        """Entries as an absorb leaves them, all older than any change."""
        await self.conn.execute(
            sql.SQL(
                "insert into {} (key_1, target, sort_key) select g, {}, now() - ({} - g) * interval '1 ms' - interval '1 d'"
                " from generate_series(1, {}) g"
            ).format(self.declaration.outbox, self.target.name, waiting, waiting)
        )
        await self.conn.execute(sql.SQL("truncate {}").format(self.declaration.source.change))
        await self.clean()

    async def lay_by(self, entries: int) -> None:
        """Dead letters, and entries that must wait, of rows that are not there (negative keys)."""
        outbox = self.declaration.outbox
        await self.conn.execute(
            sql.SQL(
                "insert into {} (key_1, target, sort_key, attempts, failed_at, failed_hash, error_kind, last_error)"
                " select -g, {}, now(), 3, now(), '\\x00', 'input refused', 'the model refuses this text'"
                " from generate_series(1, {}) g"
            ).format(outbox, self.target.name, entries)
        )
        await self.conn.execute(
            sql.SQL(
                "insert into {} (key_1, target, sort_key, attempts, not_before)"
                " select -g, {}, now(), 1, now() + interval '1 d' from generate_series({}, {}) g"
            ).format(outbox, self.target.name, entries + 1, 2 * entries)
        )
        await self.clean()

    async def clean(self) -> None:
        """As autovacuum would, once nothing holds it back."""
        for table in (
            self.declaration.outbox,
            self.declaration.source.change,
            sql.Identifier(self.declaration.source.name),
        ):
            await self.conn.execute(sql.SQL("vacuum analyze {}").format(table))

    async def dead(self) -> int:
        """Rows of the change log that are deleted and that vacuum may not take away."""
        change = self.declaration.source.change
        await self.conn.execute(sql.SQL("vacuum {}").format(change))
        row = await (
            await self.conn.execute(
                "select n_dead_tup from pg_stat_user_tables where relid = %s::regclass",
                (change.as_string(None),),
            )
        ).fetchone()
        assert row is not None
        return int(row[0])

    async def change(self, step: int, number: int) -> None:
        """In statements of 500 rows, each a transaction."""
        table, first = sql.Identifier(self.declaration.source.name), number * step % self.rows
        for at in range(first, first + step, WAVE):
            await self.conn.execute(
                sql.SQL(
                    "update {table} set title = title || 'x', posted = clock_timestamp() where id in"
                    " (select id from {table} order by id offset {at} limit {rows})"
                ).format(table=table, at=at % self.rows, rows=min(WAVE, first + step - at))
            )


class Worker:
    """One round of one case."""

    def __init__(self, live: Live) -> None:
        self.live, declaration = live, live.declaration
        self.outbox = Outbox(declaration, live.target, SYSTEM, lease_seconds=900, max_attempts=3)
        self.committer = Committer(declaration, live.target, ToyDerivation(declaration, "title").sink)
        self.absorber = Absorber(declaration.source, [declaration])
        self.claims: list[float] = []
        self.drains: list[float] = []
        self.absorbs: list[float] = []

    async def cycle(self, step: int, number: int) -> None:
        """As many wait afterwards as before."""
        conn = self.live.conn
        await self.live.change(step, number)
        began = time.perf_counter()
        taken = (await self.absorber.drain(conn, PIECE)).taken
        self.absorbs.append(time.perf_counter() - began)
        if taken != step:
            raise AssertionError(f"{taken} of {step} changes were absorbed")
        done, began = 0, time.perf_counter()
        while done < step:
            token, asked = SYSTEM.token(), time.perf_counter()
            entries = await self.outbox.claim(conn, min(WAVE, step - done), token)
            self.claims.append(time.perf_counter() - asked)
            if not entries:
                raise AssertionError(f"nothing could be claimed with {step - done} to go")
            done += (await self.committer.commit(conn, Change(token, entries))).finished
        self.drains.append(time.perf_counter() - began)

    def told(self, step: int) -> dict[str, Any]:
        """Entries claimed and removed, claims and changes absorbed in a second, and all the times that they are made from."""
        return {
            "drain": step * len(self.drains) / sum(self.drains),
            "claim": len(self.claims) / sum(self.claims),
            "absorb": step * len(self.absorbs) / sum(self.absorbs),
            "claims": self.claims,
            "drains": self.drains,
            "absorbs": self.absorbs,
        }


@dataclass
class Size:
    waiting: int
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # case -> rounds

    def of(self, case: str, measure: str) -> float:
        return median(float(one[measure]) for one in self.rounds[case])

    def ratio(self, case: str, measure: str) -> float:
        return self.of(case, measure) / self.of("calm", measure)


async def measure(bench: Bench) -> Part:
    step, laid_by = bench.sized(STEP, WAVE), bench.sized(LAID_BY, 5000)
    cycles = 3 if bench.quick else CYCLES
    sizes = [Size(bench.sized(waiting, step)) for waiting in WAITING[: 1 if bench.quick else None]]
    async with postgres.server() as server:
        for size in sizes:
            bench.say(f"pressure: filling {size.waiting:,} entries, and {2 * laid_by:,} that lie by")
            filled = await server.create("filled")
            await migrate(filled)
            async with await psycopg.AsyncConnection.connect(filled, autocommit=True) as conn:
                live = await Live.make(conn, "live", step * cycles, size.waiting + 1)
                await live.fill(size.waiting)
            async with AsyncExitStack() as stack:
                lives = {}
                for number, case in enumerate(HELD):
                    dsn = await server.create(f"case_{number}", "filled")
                    conn = await stack.enter_async_context(
                        await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                    )
                    lives[case] = replace(live, conn=conn)
                await lives[CASES[2]].lay_by(laid_by)
                await _turns(bench, size, lives, step, cycles)
    return _part(server, sizes, step, cycles, laid_by)


async def _turns(bench: Bench, size: Size, lives: dict[str, Live], step: int, cycles: int) -> None:
    for round in range(bench.rounds + 1):
        workers = {case: Worker(live) for case, live in lives.items()}
        async with AsyncExitStack() as stack:
            for case, statements in HELD.items():
                other = await stack.enter_async_context(
                    await psycopg.AsyncConnection.connect(lives[case].conn.info.dsn, autocommit=True)
                )
                if statements:
                    await other.execute(sql.SQL(statements))
            for number in range(cycles if round else 1):
                for worker in workers.values():
                    await worker.cycle(step, number)
            dead = {case: await live.dead() for case, live in lives.items()}
            for case, statements in HELD.items():
                if statements and dead[case] < step * (cycles if round else 1):
                    raise AssertionError(f"{case} held nothing back: {dead[case]} dead rows in the log")
            # Their transactions end with their connections.
        for live in lives.values():
            await live.clean()
        if round:  # the first one makes the pages and the plans
            for case, worker in workers.items():
                size.rounds.setdefault(case, []).append(worker.told(step) | {"dead": dead[case]})
            bench.say(
                f"pressure: {size.waiting:,} waiting, round {round}: claimed and removed a second: "
                + ", ".join(f"{case} {rounds[-1]['drain']:,.0f}" for case, rounds in size.rounds.items())
            )


def _part(server: postgres.Server, sizes: list[Size], step: int, cycles: int, laid_by: int) -> Part:
    names = {"drain": "claim and removal", "claim": "claims", "absorb": "absorbed"}
    figures = [
        Figure(
            f"{case}: {names[measure]}, of the calm rate, at its worst size",
            min(size.ratio(case, measure) for size in sizes), "×", at_least=GOAL,
        )
        for case in CASES for measure in MEASURES
    ]  # fmt: skip
    return Part(
        "pressure",
        f"Cycles of {step:,} changes absorbed and as many entries claimed and removed in waves of {WAVE} (claim and commit: no "
        f"load, no outputs), {cycles} in each measurement, while so many wait; {laid_by:,} dead letters and {laid_by:,} future entries. Other transactions are held for the whole "
        "measurement.",
        figures,
        [
            Table(
                "A second, medians of the rounds; in brackets of the calm one",
                ("waiting", "case", "claim and removal of entries", "claims", "changes absorbed", "slowest claim, ms",
                 "dead rows of the log"),
                [
                    [
                        f"{size.waiting:,}",
                        case,
                        *(f"{size.of(case, measure):,.0f} ({size.ratio(case, measure):.2f})" for measure in MEASURES),
                        max(max(one["claims"]) for one in size.rounds[case]) * 1000,
                        size.of(case, "dead"),
                    ]
                    for size in sizes
                    for case in ("calm", *CASES)
                ],
            )
        ],
        [
            "an old snapshot and an idle transaction held back every row that was absorbed meanwhile",
            "in each cycle: every change was absorbed, every claimed entry removed, as many wait as before",
            "between two measurements the tables are vacuumed; within one, autovacuum comes as it does",
        ],
        rounds={f"{size.waiting} waiting, {case}": rounds for size in sizes for case, rounds in size.rounds.items()},
        settings=server.settings,
    )  # fmt: skip
