"""Two mutations of the same entries, statement by statement: one is held where the test says, the other is let run
until it is done or waits for the first (pg_blocking_pids tells, no sleep), then both end.

What must come out is judged row by row: each entity (its entry, stamp, output, and its place in the change log) must
be as one of the two orders would leave it. A statement that skips what is locked may also have left it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from world import World

from instep.clock import SYSTEM
from instep.database.transactions import transaction
from instep.engine import declared
from instep.engine.absorb import Absorber
from instep.engine.commit import Change, Committer
from instep.engine.dead import DeadLetters
from instep.engine.install import _SQL as INSTALL
from instep.engine.outbox import Failure, Outbox
from instep.engine.ports import Entry, Output
from instep.engine.sweep import Sweeper

Conn = psycopg.AsyncConnection[Any]
Mutation = Callable[["Races", Conn, int], Awaitable[object]]
State = Mapping[object, object]

TOKEN = 7  # of the leased wave, whose lease has run out: its holder and the next claim both may come
LEASED = (1, 2, 3, 14)  # 14 is gone from the source
TABLES = ("outbox_articles_embed", "stamp_articles_embed", "change_articles", "toy")

PREPARE = (
    "insert into articles (id, title) select g, 'title ' || g from generate_series(1, 15) g where g not in (13, 14)",
    "delete from instep.change_articles where key_1 > 12",  # 1 to 12 have changed since they were worked
    # 4 to 6 are dead letters of other content, 7 is parked and due, 8 is a suspect, 9 is lost, 15 waits.
    "insert into instep.outbox_articles_embed (key_1, target, sort_key, token, lease_until, claims, attempts, not_before,"
    " failed_at, failed_hash, error_kind) select g, 'upper-v1', '-infinity',"
    " case when g in (1, 2, 3, 14) then 7 when g in (8, 9) then 9 end,"
    " case when g in (1, 2, 3, 8, 9, 14) then now() - interval '1 minute' end,"
    " case g when 8 then 5 when 9 then 6 else 1 end, case when g in (4, 5, 6) then 3 when g = 7 then 1 else 0 end,"
    " case g when 7 then now() - interval '1 minute' end,"
    " case when g in (4, 5, 6) then now() end, case when g in (4, 5, 6) then 'old'::bytea end,"
    " case when g in (4, 5, 6) then 'boom' end"
    " from generate_series(1, 15) g where g not between 10 and 13",
    "insert into instep.stamp_articles_embed (key_1, target, content_hash)"
    " select g, 'upper-v1', 'old' from generate_series(1, 14) g where g not between 10 and 12",
    "insert into instep.toy (key_1, target, shout)"
    " select g, 'upper-v1', 'OLD' from generate_series(1, 14) g where g not between 10 and 12",
    "create schema saved",
    *(f"create table saved.{table} as table instep.{table}" for table in TABLES),
    "create table saved.derivation as table instep.derivation",
)  # fmt: skip
RESET = (
    *(f"delete from instep.{table}" for table in TABLES),  # a TRUNCATE of four tables takes ten times as long
    *(f"insert into instep.{table} overriding system value table saved.{table}" for table in TABLES),
    "update instep.target set state = 'reading'",
    "update instep.derivation d set (sweep_due, swept_at, swept_marker) ="
    " (select s.sweep_due, s.swept_at, s.swept_marker from saved.derivation s where s.name = d.name)",
)
LOOK = """
select e.key_1, to_jsonb(e) from (
    select key_1, generation, sort_key > '-infinity' as now, not_before is not null as parked, lease_until > now() as leased,
        token, claims, attempts, failed_at is not null as dead, failed_hash, discarded_at is not null as discarded,
        discard_reason, error_kind, last_error from instep.outbox_articles_embed) e
union all select key_1, jsonb_build_object('stamp', content_hash) from instep.stamp_articles_embed
union all select key_1, jsonb_build_object('output', shout) from instep.toy
union all select key_1, jsonb_build_object('log', derivations) from instep.change_articles
union all select -id, jsonb_build_object('state', state) from instep.target
order by 1, 2
"""


class Gated(psycopg.AsyncConnection[Any]):
    """Holds before its statement number `hold` until told to go on."""

    hold: int | None = None
    count = 0

    def arm(self, hold: int | None) -> None:
        self.hold, self.count = hold, 0
        self.held, self.go = asyncio.Event(), asyncio.Event()

    async def execute(self, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[Any]:
        if self.hold is not None and self.count == self.hold:
            self.held.set()
            await self.go.wait()
        self.count += 1
        return await super().execute(*args, **kwargs)


@dataclass
class Races:
    world: World
    one: Gated
    two: Gated
    third: Conn
    watch: Conn
    hashes: Mapping[int, bytes] = field(default_factory=dict)
    _ends: dict[tuple[str, ...], State] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)
    resets: int = 0

    @classmethod
    async def make(cls, dsn: str, conn: Conn) -> Races:
        await conn.execute("select set_config('search_path', 'public', false)")
        name = (await (await conn.execute("select current_database()")).fetchone())[0]  # type: ignore[index]
        await conn.execute(f"alter database {name} set deadlock_timeout = '100ms'")
        world = await World.make(dsn, conn)
        for statement in PREPARE:
            await conn.execute(statement)
        rows = await conn.execute("select id, instep.content_hash(instep.part(title)) from articles")
        hashes = dict(await rows.fetchall())
        one, two = [await Gated.connect(dsn, autocommit=True) for _ in range(2)]
        third = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        for opened in (one, two):
            await opened.execute("set timezone = 'UTC'; set datestyle = 'ISO'")
        return cls(world, one, two, third, conn, hashes)

    async def close(self) -> None:
        for opened in (self.one, self.two, self.third):
            await opened.close()

    async def reset(self) -> None:
        self.resets += 1
        if self.resets % 20 == 0:  # else each race walks over the dead rows of all before it
            await self.watch.execute(
                f"vacuum (index_cleanup on) {', '.join(f'instep.{table}' for table in TABLES)}"
            )
        await self.watch.execute("; ".join(RESET))

    async def state(self) -> State:
        found: dict[object, list[object]] = {}
        for key, part in await (await self.watch.execute(LOOK)).fetchall():
            found.setdefault(key, []).append(part)
        return found

    async def after(self, *names: str) -> State:
        """What these mutations leave, one after the other. `one` is the first process, `two` the second."""
        if names not in self._ends:
            await self.reset()
            for name in names:
                who, mutation = name.split(" ")
                await MUTATIONS[mutation](self, self.watch, int(who))
            self._ends[names] = await self.state()
        return self._ends[names]

    async def count(self, name: str) -> int:
        """The statements of a mutation that nobody meets."""
        if name not in self.statements:
            await self.reset()
            self.one.arm(None)
            await MUTATIONS[name](self, self.one, 1)
            self.statements[name] = self.one.count
        return self.statements[name]

    async def held(self, first: str, second: str, at: int) -> list[str]:
        """`second` runs while `first` is held before its statement `at`; what is wrong afterwards."""
        await self.reset()
        self.one.arm(at)
        self.two.arm(None)
        a = asyncio.create_task(MUTATIONS[first](self, self.one, 1))
        holding = asyncio.create_task(self.one.held.wait())
        await asyncio.wait((a, holding), return_when=asyncio.FIRST_COMPLETED)
        holding.cancel()
        b = asyncio.create_task(MUTATIONS[second](self, self.two, 2))
        waited = await self.waits(b, self.two)
        self.one.go.set()
        found = await self._ended(first, second, a, b)
        return [*found, f"{second} waited for {first}"] if waited and second in NEVER_WAIT else found

    async def middle(self, first: str, second: str, keys: Sequence[int]) -> list[str]:
        """A third has locked `keys`; both come up to them, in whichever order they lock, and then it lets go. Had they
        locked in different orders, each would now wait for what the other holds."""
        await self.reset()
        self.one.arm(None)
        self.two.arm(None)
        async with self.third.transaction():
            await self.third.execute(
                "select from instep.outbox_articles_embed where key_1 = any(%s) for update", (list(keys),)
            )
            a = asyncio.create_task(MUTATIONS[first](self, self.one, 1))
            await self.waits(a, self.one)
            b = asyncio.create_task(MUTATIONS[second](self, self.two, 2))
            await self.waits(b, self.two)
        return await self._ended(first, second, a, b)

    async def waits(self, task: asyncio.Task[object], conn: Conn) -> bool:
        """Until the task is done or its backend waits for another's lock (true)."""
        blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
        while not task.done():
            await asyncio.wait((task,), timeout=0.002)
            row = await (await self.watch.execute(blocked, (conn.info.backend_pid,))).fetchone()
            if row == (True,):
                return True
        return False

    async def _ended(
        self, first: str, second: str, a: asyncio.Task[object], b: asyncio.Task[object]
    ) -> list[str]:
        for outcome in await asyncio.gather(a, b, return_exceptions=True):
            if isinstance(outcome, BaseException):
                return [f"{type(outcome).__name__}: {outcome}"]
        return await self._judged(first, second, await self.state())

    async def _judged(self, first: str, second: str, now: State) -> list[str]:
        one, two = f"1 {first}", f"2 {second}"
        allowed = [await self.after(one, two), await self.after(two, one)]
        if second in SKIP:
            allowed.append(await self.after(one))
        if first in SKIP:
            allowed.append(await self.after(two))
        if first in SKIP and second in SKIP:
            allowed.append(await self.after())
        return [
            f"key {key}: {now.get(key)}\n  of {[end.get(key) for end in allowed]}"
            for key in sorted({*now, *(key for end in allowed for key in end)}, key=str)
            if now.get(key) not in [end.get(key) for end in allowed]
            and not _needless(first, second, now.get(key), allowed[first == "sweep"].get(key))
        ]


def _needless(first: str, second: str, now: object, commit_first: object) -> bool:
    """A sweep compares by its snapshot. Where a commit ends between that and the insert, an entry is made that nothing
    needs: it waits beside what the commit has made; load finds the stamp, and it costs no model call."""
    if {first, second} != {"commit", "sweep"} or not isinstance(now, list):
        return False
    waiting = {"token": None, "parked": False, "dead": False, "claims": 0, "attempts": 0}
    return [part for part in now if not waiting.items() <= part.items()] == (commit_first or [])


def _outbox(races: Races) -> Outbox:
    world = races.world
    return Outbox(world.declaration, world.target, SYSTEM, lease_seconds=900, max_attempts=3)


KEYS = [(key,) for key in LEASED]


def _entries() -> list[Entry]:
    return [Entry(key, 1, 1, "-infinity") for key in KEYS]


async def claim(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).claim(conn, 100, 10 + who)


async def claim_suspect(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).claim_suspect(conn, 20 + who)


async def bury_lost(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).bury_lost(conn)


async def let_in(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).let_in(conn)


async def commit(races: Races, conn: Conn, who: int) -> object:
    world = races.world
    committer = Committer(world.declaration, world.target, world.derivation.sink)
    outputs = [Output((key,), races.hashes[key], f"TITLE {key}") for key in LEASED if key in races.hashes]
    cleared = [(key,) for key in LEASED if key not in races.hashes]
    return await committer.commit(conn, Change(TOKEN, _entries(), outputs, cleared))


async def release(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).release(conn, TOKEN, KEYS)


async def park(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).park(conn, TOKEN, KEYS)


async def renew(races: Races, conn: Conn, who: int) -> object:
    return await _outbox(races).renew(conn, TOKEN, KEYS)


async def fail(races: Races, conn: Conn, who: int) -> object:
    failures = [Failure(entry, "boom", "it broke", False, b"old") for entry in _entries()]
    return await _outbox(races).fail(conn, TOKEN, failures)


async def absorb(races: Races, conn: Conn, who: int) -> object:
    world = races.world
    return await Absorber(world.source, await declared.read_declarations(conn, world.source)).absorb(conn)


async def sweep(races: Races, conn: Conn, who: int) -> object:
    world = races.world
    return await Sweeper(world.declaration, [world.target]).sweep(conn)


async def bury(races: Races, conn: Conn, who: int) -> object:
    sweeper = Sweeper(races.world.declaration, [races.world.target])
    return await sweeper._bury(conn, (15,), psycopg.errors.DataCorrupted("torn page"))


async def replay(races: Races, conn: Conn, who: int) -> object:
    return await DeadLetters(races.world.declaration).replay(conn)


async def replay_one(races: Races, conn: Conn, who: int) -> object:
    return await DeadLetters(races.world.declaration).replay(conn, key=(5,))


async def discard(races: Races, conn: Conn, who: int) -> object:
    return await DeadLetters(races.world.declaration).discard(conn, "hopeless")


async def retire(races: Races, conn: Conn, who: int) -> object:
    async with transaction(conn):
        return await conn.execute(INSTALL["retire"], {"source": "articles"})


MUTATIONS: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        claim, claim_suspect, bury_lost, let_in, commit, release, park, renew, fail, absorb, sweep, bury, replay,
        replay_one, discard, retire,
    )
}  # fmt: skip
NEVER_WAIT = frozenset({"claim", "claim_suspect", "bury_lost", "let_in"})
SKIP = NEVER_WAIT | {"absorb"}  # the last skips what is locked in the log alone
