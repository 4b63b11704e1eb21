"""Absorb: turns the change log of a source into entries of its derivations' outboxes, a bounded piece at a time.

What is kept here, and the test that guards it (tests/postgres/test_absorb.py):
- a piece leaves the log and enters the outboxes in one statement: test_c1_6_a_change_of_a_waiting_entry_is_one_entry;
- an entry that is being worked is counted up and keeps lease and token: test_a_leased_entry_keeps_lease_and_token;
- the cost grows with what changed, not with the table: test_the_plan_reads_no_table_as_a_whole;
- a writer that commits late is absorbed then: test_a_late_committer_is_found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import errors as pg
from psycopg import sql

from instep import failpoints
from instep.database.statements import Statements, compose
from instep.database.transactions import INDEX_ONLY, WORKER, transaction
from instep.engine.declaration import Declaration, Source, fragments
from instep.engine.ports import Conn

FROM_THE_START = 16
"""Every so many full pieces the log is read from its beginning again, for writers that committed late; after one that
was not full it always is."""

UNREADABLE = (pg.DataCorrupted, pg.IndexCorrupted, pg.DataError)
"""A row is damaged, or an expression of the user's fails on it: the row's trouble, not everybody's."""

_FILE = ("instep.engine", "absorb.sql")


@dataclass(frozen=True, slots=True)
class Absorbed:
    taken: int  # rows of the change log
    enqueued: Mapping[str, int] = field(default_factory=dict)  # derivation -> entries made or renewed


class Absorber:
    """Absorbs for all derivations of one source. Keeps a cursor into the log, so that rows which are deleted but
    not yet vacuumed are not walked again; one for each worker."""

    def __init__(self, source: Source, declarations: Sequence[Declaration]) -> None:
        self.source = source
        self.declarations = tuple(declarations)
        self._cursor = 0
        self._pieces = 0
        self._idle = False  # the last piece took nothing
        self._log = Statements(*_FILE, change=source.change)["logged"]
        self._statement = _absorb(source, self.declarations, "newest")
        self._unread = _absorb(source, self.declarations, "newest_unread")

    async def absorb(self, conn: Conn, limit: int = 2000) -> Absorbed:
        """One piece of at most `limit` log rows, in a transaction of its own; `taken` is 0 only where the log holds
        nothing that others have not locked."""
        if not self.declarations or (self._idle and not await self._logged(conn)):
            return Absorbed(0)
        self._pieces += 1
        if self._pieces % FROM_THE_START == 0:
            self._cursor = 0
        absorbed = await self._piece(conn, limit)
        if absorbed.taken == 0 and self._cursor:
            self._cursor = 0
            absorbed = await self._piece(conn, limit)
        if absorbed.taken < limit:
            self._cursor = 0
        self._idle = absorbed.taken == 0
        return absorbed

    async def drain(self, conn: Conn, limit: int = 2000) -> Absorbed:
        """Pieces until the log is empty; the sum of them."""
        taken = 0
        enqueued = {declaration.name: 0 for declaration in self.declarations}
        while (piece := await self.absorb(conn, limit)).taken:
            taken += piece.taken
            for name, count in piece.enqueued.items():
                enqueued[name] += count
        return Absorbed(taken, enqueued)

    async def _logged(self, conn: Conn) -> bool:
        row = await (await conn.execute(self._log, {})).fetchone()
        return bool(row and row[0])

    async def _piece(self, conn: Conn, limit: int) -> Absorbed:
        try:
            return await self._execute(conn, self._statement, limit)
        except UNREADABLE:
            return await self._execute(conn, self._unread, limit)

    async def _execute(self, conn: Conn, statement: bytes, limit: int) -> Absorbed:
        values = {"source": self.source.name, "cursor": self._cursor, "limit": limit}
        async with transaction(conn, WORKER, *INDEX_ONLY):
            failpoints.reach("absorb.begun")
            row = await (await conn.execute(statement, values)).fetchone()
            failpoints.reach("absorb.taken")
        failpoints.reach("absorb.committed")
        assert row is not None
        taken, last, *counts = row
        if last is not None:
            self._cursor = last
        names = (declaration.name for declaration in self.declarations)
        return Absorbed(taken, dict(zip(names, counts, strict=True)))


def _absorb(source: Source, declarations: Sequence[Declaration], newest: str) -> bytes:
    """The statement for these derivations; those that agree on eligible and newest share one join."""
    if not declarations:
        return b""
    joined: dict[tuple[str, str], sql.Identifier] = {}
    steps: list[sql.Composable] = []
    counts: list[sql.Composable] = []
    for number, declaration in enumerate(declarations, 1):
        own = fragments(declaration)
        idea = (declaration.eligible, declaration.newest)
        if idea not in joined:
            joined[idea] = sql.Identifier(f"joined_{len(joined) + 1}")
            steps.append(compose(*_FILE, newest, **own, joined=joined[idea]))
        step = sql.Identifier(f"enqueued_{number}")
        bound = {**own, "joined": joined[idea], "step": step, "bit": sql.Literal(declaration.bit)}
        steps.append(compose(*_FILE, "enqueue", **bound))
        counts.append(compose(*_FILE, "count", step=step))
    return compose(
        *_FILE,
        "absorb",
        **fragments(declarations[0]),
        steps=sql.SQL(",\n").join(steps),
        counts=sql.SQL(", ").join(counts),
    ).as_bytes(None)
