"""One wave's commit: fence → outputs → stamps → entries, in one transaction.

Invariants kept here (ENGINE.md, "Working a wave"):
- what is not held under the wave's token any more is not written at all: superseded;
- an entry whose generation moved on since the claim is given back, not removed, so that a change that was
  absorbed while its entity was being worked is not lost with the entry;
- the hash that is stamped is the one that was loaded, never one read now;
- the number of round trips does not depend on the number of entries.
Guarded by tests/postgres/test_commit.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from instep import failpoints
from instep.database.arrays import PackedArray
from instep.database.statements import Statements
from instep.database.transactions import WORKER, transaction
from instep.engine.declaration import Columns, Declaration, Key, Target, fragments
from instep.engine.ports import Conn, Entry, Output, Sink


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be committed for the entries of one wave. An entry whose key is in none of the lists is only
    removed: its stamp already names what was loaded."""

    token: int
    entries: Sequence[Entry]
    outputs: Sequence[Output] = ()
    cleared: Sequence[Key] = ()  # gone or no longer eligible


@dataclass(frozen=True, slots=True)
class Committed:
    outputs: Sequence[Output] = ()  # of `Change`, those that were written
    cleared: Sequence[Key] = ()
    finished: int = 0
    given_back: int = 0
    superseded: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    places: Mapping[Key, bytes]  # ctid of each entry that is held under our token
    moved: frozenset[Key] = field(default=frozenset())


class Committer:
    def __init__(self, declaration: Declaration, target: Target, sink: Sink) -> None:
        columns = Columns(declaration.source.key)
        self._columns, self._target, self._sink = columns, target, sink
        self._sql = Statements(
            "instep.engine",
            "commit.sql",
            **fragments(declaration),
            key_hash_unnest=columns.unnest(("hash", "bytea")),
        )

    async def stamps(self, conn: Conn, keys: Sequence[Key]) -> dict[Key, bytes]:
        """The hashes that outputs of this target were made from."""
        cursor = await conn.execute(
            self._sql["read_stamps"], {"target": self._target.name, **self._columns.arrays(keys)}, binary=True
        )
        return {row[:-1]: row[-1] for row in await cursor.fetchall()}

    async def commit(self, conn: Conn, change: Change) -> Committed:
        """Write what is still held under the wave's token, in one transaction. Raises what the sink or PostgreSQL raises, and then nothing was written."""
        async with transaction(conn, WORKER):
            failpoints.reach("commit.begun")
            held = await self._fence(conn, change)
            failpoints.reach("commit.fenced")
            outputs = change.outputs
            if len(held.places) < len(change.entries):
                outputs = [output for output in outputs if output.key in held.places]
            cleared = [key for key in change.cleared if key in held.places]
            if outputs or cleared:
                await self._sink.write(conn, self._target, cleared, outputs)
            failpoints.reach("commit.written")
            await self._stamp(conn, outputs, cleared)
            failpoints.reach("commit.stamped")
            moved = [held.places[key] for key in held.moved]
            finished = [place for key, place in held.places.items() if not moved or key not in held.moved]
            if held.places:
                places = {"finished": PackedArray("tid", finished), "moved": PackedArray("tid", moved)}
                await conn.execute(self._sql["finish"], places)
            failpoints.reach("commit.finished")
        failpoints.reach("commit.committed")
        return Committed(outputs, cleared, len(finished), len(moved), len(change.entries) - len(held.places))

    async def _fence(self, conn: Conn, change: Change) -> _Held:
        """Lock target and entries; keep what is still ours."""
        claimed = {entry.key: entry.generation for entry in change.entries}
        of = {"id": self._target.id, "token": change.token}
        parameters = of | self._columns.arrays(claimed)
        rows = await (await conn.execute(self._sql["fence"], parameters, binary=True)).fetchall()
        places = {row[1:-1]: row[0] for row in rows}
        generations = zip(places, rows, strict=True)
        return _Held(places, frozenset(key for key, row in generations if row[-1] != claimed[key]))

    async def _stamp(self, conn: Conn, outputs: Sequence[Output], cleared: Sequence[Key]) -> None:
        target = {"target": self._target.name}
        if outputs:
            hashes = {"hash": PackedArray("bytea", [output.hash for output in outputs])}
            keys = self._columns.arrays(output.key for output in outputs)
            await conn.execute(self._sql["stamp"], target | hashes | keys)
        if cleared:
            await conn.execute(self._sql["unstamp"], target | self._columns.arrays(cleared))
