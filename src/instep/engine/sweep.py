"""Sweep: finds work by comparing state, so that losing the queue loses nothing.

It covers what was never made, made by another target, made from other content, and what is stamped though not
eligible any more. Invariants, and the tests that guard them (tests/postgres/test_sweep.py, test_sweep_due.py):
- NULL hashes neither loop nor hide: test_null_hashes_neither_loop_nor_hide;
- a dead letter is revived by other content or the end of its row alone: test_dead_letters_are_revived_only_as_written;
- a sweep clears a reason or passes a marker only if it began after it: test_a_marker_on_its_way_is_not_passed;
- one row that cannot be read holds nothing up: test_a_row_that_cannot_be_read_is_buried_alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from instep import failpoints
from instep.database.statements import Statements
from instep.database.transactions import WORKER, transaction
from instep.engine.capture import marker_lock
from instep.engine.declaration import Columns, Declaration, Key, Target, fragments
from instep.engine.ports import Conn
from instep.engine.relations import row_estimate
from instep.errors import Configuration, Permanent, Refused

PIECE = 10_000  # keys
SMALL = 200_000  # rows: below, each run sweeps
INTERVAL = 6 * 3600.0  # seconds, for all others
DAMAGED = (pg.DataCorrupted, pg.IndexCorrupted)
UNREADABLE = (*DAMAGED, pg.DataError)
"""Damage (XX001), or an expression of the user's that fails on a row (22012, say)."""
MOST_UNREADABLE = 100
"""So many rows on which an expression fails, in one sweep, are no bad rows but a bad expression."""

_SQL = Statements("instep.engine", "sweep.sql")


@dataclass(frozen=True, slots=True)
class Piece:
    enqueued: int  # entries made, revived or counted up
    keys_seen: int  # rows of the source
    buried: int = 0  # rows that cannot be read
    dead: int = 0  # dead letters made of them by this sweep, not by one before

    def __add__(self, other: Piece) -> Piece:
        return Piece(
            self.enqueued + other.enqueued,
            self.keys_seen + other.keys_seen,
            self.buried + other.buried,
            self.dead + other.dead,
        )


async def make_due(
    conn: Conn, reason: str, *, source: str | None = None, derivation: str | None = None
) -> None:
    """Ask for a complete sweep, of one derivation or of all of a source. A sweep that is under way does not count."""
    values = {"reason": reason, "source": source, "derivation": derivation}
    await conn.execute(_SQL["make_due"], values)


async def due(conn: Conn, declaration: Declaration, sweep_every: float | None = None) -> str | None:
    """Why a complete sweep is due now, or None. `sweep_every`: the interval in seconds, whatever the table's size;
    by default each call under 200 thousand rows, else 6 hours."""
    row = await (await conn.execute(_SQL["due"], {"derivation": declaration.name})).fetchone()
    if row is None:
        raise Refused(f"There is no derivation {declaration.name!r}.")
    reason, marked, age = row
    if reason is not None:
        return str(reason)
    if marked:
        return "something happened that left no keys (TRUNCATE, or trouble in capture)"
    if age is None:
        return "never swept"
    if sweep_every is not None:
        return f"last swept {age:.0f} s ago" if age >= sweep_every else None
    if age >= INTERVAL:
        return f"last swept {age / 3600:.1f} h ago"
    rows = await row_estimate(conn, declaration.source.oid)
    return "small table" if rows < SMALL else None


class Sweeper:
    """One complete sweep of one derivation, for all its targets in use: each piece looks at their states itself, so
    `targets` (as they were when the sweep was decided on) only tell whether there is anything to do at all."""

    def __init__(self, declaration: Declaration, targets: Sequence[Target], size: int = PIECE) -> None:
        self.declaration = declaration
        self._in_use = any(target.state != "retired" for target in targets)
        self.size = size
        self._columns = Columns(declaration.source.key)
        self._bound: dict[tuple[bool, bool, bool], Statements] = {}
        self._failed = 0  # rows on which an expression failed

    async def pieces(self, conn: Conn) -> AsyncIterator[Piece]:
        """Sweep piece by piece, each in a transaction of its own; marks the sweep complete after the last one. A
        caller that stops early leaves the sweep due."""
        if not self._in_use:
            return
        name = self.declaration.name
        lock = marker_lock(self.declaration.source.name)
        row = await (await conn.execute(_SQL["begin_sweep"], {"derivation": name, "lock": lock})).fetchone()
        if row is None:
            raise Refused(f"There is no derivation {name!r}.")
        failpoints.reach("sweep.begun")
        reason, began, marker = row
        lower: Key | None = None
        while True:
            upper = await self._end(conn, lower)
            failpoints.reach("sweep.bounded")
            yield await self._readable(conn, lower, upper)
            if upper is None:
                break
            lower = upper
        values = {"derivation": name, "began": began, "marker": marker, "due": reason}
        await conn.execute(_SQL["end_sweep"], values)
        failpoints.reach("sweep.ended")
        await conn.execute(_SQL["forget_markers"], {"source": self.declaration.source.name})

    async def sweep(self, conn: Conn) -> Piece:
        """All pieces; the sum of them."""
        total = Piece(0, 0)
        async for piece in self.pieces(conn):
            total += piece
        return total

    async def _end(self, conn: Conn, lower: Key | None) -> Key | None:
        """The key at which the piece after `lower` ends, or None for the last piece."""
        size = self.size
        while True:
            values = {**self._range(lower), "size": size}
            try:
                async with transaction(conn):
                    return await (await conn.execute(self._statement("bound", lower), values)).fetchone()
            except DAMAGED as error:
                # The way to the next bound leads over a damaged page: go in shorter steps up to it.
                if size == 0:
                    raise self._lost(error, lower) from error
                size //= 2

    async def _readable(self, conn: Conn, lower: Key | None, upper: Key | None) -> Piece:
        try:
            return await self._piece(conn, lower, upper)
        except UNREADABLE as error:
            keys = await self._keys(conn, lower, upper, error)
            return await self._halves(conn, lower, upper, keys, error)

    async def _halves(
        self, conn: Conn, lower: Key | None, upper: Key | None, keys: Sequence[Key], error: psycopg.Error
    ) -> Piece:
        """The piece that failed with `error` and holds `keys`, in halves until the bad rows stand alone."""
        if not keys:
            raise self._lost(error, lower)
        if len(keys) == 1:
            dead = await self._bury(conn, keys[0], error)
            return await self._piece(conn, lower, upper, without=keys[0]) + Piece(0, 1, 1, dead)
        half = len(keys) // 2
        middle = keys[half - 1]
        total = Piece(0, 0)
        for low, high, part in ((lower, middle, keys[:half]), (middle, upper, keys[half:])):
            try:
                piece = await self._piece(conn, low, high)
            except UNREADABLE as again:
                piece = await self._halves(conn, low, high, part, again)
            total += piece
        return total

    async def _piece(
        self, conn: Conn, lower: Key | None, upper: Key | None, without: Key | None = None
    ) -> Piece:
        values = {**self._range(lower, upper, without), "derivation": self.declaration.name}
        async with transaction(conn, WORKER):
            row = await (
                await conn.execute(self._statement("piece", lower, upper, without), values)
            ).fetchone()
            failpoints.reach("sweep.enqueued")
        failpoints.reach("sweep.committed")
        assert row is not None
        return Piece(*row)

    async def _keys(
        self, conn: Conn, lower: Key | None, upper: Key | None, error: psycopg.Error
    ) -> Sequence[Key]:
        try:
            async with transaction(conn):
                statement = self._statement("keys", lower, upper)
                return await (await conn.execute(statement, self._range(lower, upper))).fetchall()
        except DAMAGED as damage:
            raise self._lost(damage, lower) from error

    async def _bury(self, conn: Conn, key: Key, error: psycopg.Error) -> int:
        """How many dead letters that made: none for a row that has its own already, or that a worker holds."""
        if not isinstance(error, DAMAGED):
            self._failed += 1
            if self._failed > MOST_UNREADABLE:
                raise Configuration(
                    f"{self.declaration.name}: its condition, sort column or text fails on row after row: {error}",
                    hint="Mend the rows, or `instep tables remove` and add the table again with another expression.",
                ) from error
        kind = "data corruption" if isinstance(error, DAMAGED) else "unreadable row"
        values = {"derivation": self.declaration.name, "kind": kind, "message": str(error).splitlines()[0]}
        async with transaction(conn, WORKER):
            cursor = await conn.execute(self._statement("bury", None), {**values, **self._columns.one(key)})
            failpoints.reach("sweep.buried")
            return cursor.rowcount

    def _lost(self, error: psycopg.Error, lower: Key | None) -> Permanent:
        """Not even the keys can be read: no entry can stand for these rows."""
        source = self.declaration.source
        after = "from its beginning" if lower is None else f"after the key {', '.join(map(str, lower))}"
        return Permanent(
            f"{source.schema}.{source.table} cannot be read {after}: {str(error).splitlines()[0]}",
            kind="data corruption",
            hint="Check the table with pg_amcheck, and restore the damaged rows from a backup.",
        )

    def _range(
        self, lower: Key | None, upper: Key | None = None, without: Key | None = None
    ) -> dict[str, object]:
        bounds = (("lower_", lower), ("upper_", upper), ("without_", without))
        return {
            name: value
            for prefix, key in bounds
            if key is not None
            for name, value in self._columns.one(key, prefix).items()
        }

    def _statement(
        self, name: str, lower: Key | None, upper: Key | None = None, without: Key | None = None
    ) -> bytes:
        """The statement over the keys above `lower`, up to and with `upper`, `without` one of them."""
        given = (lower is not None, upper is not None, without is not None)
        if given not in self._bound:
            bounds = zip(given, (">", "<=", "<>"), ("lower_", "upper_", "without_"), strict=True)
            key = self._columns.listed("r")
            parts = [
                sql.SQL(f"({{}}) {operator} ({{}})").format(key, self._columns.values(prefix))
                for is_given, operator, prefix in bounds
                if is_given
            ]
            range_ = sql.SQL(" and ").join(parts) if parts else sql.SQL("true")
            self._bound[given] = Statements(
                "instep.engine",
                "sweep.sql",
                **fragments(self.declaration),
                source_key=self._columns.selected("a"),
                range=range_,
            )
        return self._bound[given][name]
