"""The engine with nothing to compute: `noop [--follow]`. What is left is the queue and its safety.

No-op means: claim, load of content and hash, an output that is empty, stamp, fenced removal, all by the engine's own
run. Its table is `items(id, title)`, its derivation `items.noop`. Settings come by the environment.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
import uvloop
from psycopg import sql

from instep.clock import SYSTEM
from instep.database.migrations import migrate
from instep.database.pool import Database
from instep.database.statements import Statements
from instep.engine.declaration import Columns, Declaration, Key, KeyColumn, Source, Target, fragments
from instep.engine.declared import read_declaration, read_source, read_targets
from instep.engine.install import install
from instep.engine.ports import Conn, Item, Loaded, Output
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.sweep import Sweeper
from instep.engine.wave import Limits
from instep.errors import Permanent
from instep.settings import Settings
from instep.worker import Terminated, supervise

DERIVATION, TARGET = "items.noop", "none"
HASH = "instep.content_hash(instep.part(title))"
MANY_SECONDS = 6 * 3600.0


class NoSink:
    """Writes nothing."""

    transactional = True

    async def prepare(self, conn: Conn, target: Target) -> None: ...

    async def intact(self, conn: Conn, target: Target) -> bool:
        return True

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None: ...

    async def finish(self, conn: Conn, target: Target) -> None: ...

    async def drop(self, conn: Conn, target: Target) -> None: ...


class NoDerivation:
    """Loads content and hash, computes nothing."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration, self.sink = declaration, NoSink()
        self._columns = Columns(declaration.source.key)
        self._sql = Statements("benchmarks.contestants", "noop.sql", **fragments(declaration))

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        rows = await (
            await conn.execute(self._sql["load"], self._columns.arrays(keys), binary=True)
        ).fetchall()
        return Loaded([Item(row[:1], row[2], row[1]) for row in rows])

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        return [Output(item.key, item.hash, None) for item in items]

    async def probe(self, target: Target) -> None: ...


class _Silent:
    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name in ("failed", "halved", "abandoned", "outage"):
            print(name, dict(fields), file=sys.stderr)


def settings(dsn: str, **more: Any) -> dict[str, str]:
    chosen = {"database_url": dsn, **more}
    return {f"INSTEP_{name.upper()}": str(value) for name, value in chosen.items()}


async def create(conn: Conn, rows: int, *, swept: bool = True) -> Declaration:
    """`items` with `rows` rows, all waiting in the outbox where `swept`, else in step."""
    await migrate(conn.info.dsn)
    await conn.execute("create table items (id bigint primary key, title text)")
    await conn.execute(
        sql.SQL("insert into items select g, 'this is a short text about number ' || g || ' and gardens'"
                " from generate_series(1, {}) g").format(rows)
    )  # fmt: skip
    row = await (await conn.execute("select 'items'::regclass::oid")).fetchone()
    assert row is not None
    source = Source("items", row[0], "public", "items", (KeyColumn("id", "bigint"),))
    declaration = Declaration(DERIVATION, source, 1, ("title",), HASH, catalogue="noop")
    made = await install(conn, source, [declaration], [Target(0, DERIVATION, TARGET, "reading")])
    if swept:
        async for _ in Sweeper(made.declarations[0], made.targets).pieces(conn):
            pass
    else:
        await conn.execute(
            sql.SQL("insert into instep.stamp_items_noop (key_1, target, content_hash) select id, {}, {} from items")
            .format(TARGET, sql.SQL(HASH))
        )  # fmt: skip
        await conn.execute("update instep.derivation set sweep_due = null, swept_at = now()")
    await conn.execute("vacuum analyze")
    return made.declarations[0]


async def main(follow: bool) -> None:
    given = Settings.load()
    async with await Database.open(given) as database:
        async with database.connection() as conn:
            source = await read_source(conn, "items")
            derivation = NoDerivation(await read_declaration(conn, DERIVATION))
            assert await read_targets(conn, DERIVATION)
        options = Options(Limits(given.batch_size), follow, given.poll_seconds, MANY_SECONDS)
        cpu, began = time.process_time(), time.time()
        with suppress(Terminated):
            reports = await supervise(lambda stop: _run(database, source, derivation, options, stop), print)
            counters = reports[0].counters
            print(
                orjson.dumps(
                    {"rows": counters.indexed, "began": began, "ended": time.time(),
                     "cpu": time.process_time() - cpu, "counters": counters.as_dict()}
                ).decode()
            )  # fmt: skip


async def _run(
    database: Database, source: Source, derivation: NoDerivation, options: Options, stop: Stop
) -> Any:
    return await run(
        database, source, [derivation], clock=SYSTEM, observer=_Silent(), options=options, stop=stop
    )


if __name__ == "__main__":
    uvloop.run(main("--follow" in sys.argv))
