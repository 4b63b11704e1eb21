"""Where search documents go: a tantivy index in the data directory, or a table of PostgreSQL.

Invariants of `TantivySink`, whose output is outside PostgreSQL (tests/postgres/test_search_sinks.py):
- an index commit is announced first, in a synchronous commit on a connection of its own: whenever the process or the
  server dies, the index's epoch is one of the two that the database holds, or the index is not intact;
- an index that is not intact is replaced by an empty one, but only after `intact` has said so to the engine, which
  then makes everything again: an index that is lost in the middle of a run stops the run instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from instep import failpoints
from instep.clock import SYSTEM, Clock
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Declaration, Key, Target
from instep.engine.ports import Conn, Output
from instep.errors import Outage
from instep.search.columns import Column
from instep.search.engines.postgres import Connect, PostgresIndex
from instep.search.engines.tantivy import TantivyIndex

SYNCHRONOUS = "synchronous_commit = on"


def index_path(directory: Path, declaration: Declaration, target: Target) -> Path:
    """The directory of a target's index under the data directory's `indexes`."""
    return directory / f"{declaration.suffix}_{target.id}"


class TantivySink:
    """`directory` is the data directory's `indexes`; `connect` gives a connection for announcements."""

    transactional = False

    def __init__(
        self,
        directory: Path,
        declaration: Declaration,
        columns: Sequence[Column],
        connect: Connect,
        clock: Clock = SYSTEM,
    ) -> None:
        self._directory, self._declaration, self._columns = directory, declaration, tuple(columns)
        self._connect, self._clock = connect, clock
        self._indexes: dict[int, TantivyIndex] = {}
        self._lost: set[int] = set()  # targets of which the engine was told that all is to be made again
        self._sql = Statements("instep.search", "sinks.sql")

    def index(self, target: Target) -> TantivyIndex:
        index = self._indexes.get(target.id)
        if index is None:
            path = index_path(self._directory, self._declaration, target)
            index = self._indexes[target.id] = TantivyIndex(path, self._declaration.source.key, self._columns)
        return index

    async def prepare(self, conn: Conn, target: Target) -> None:
        if await self._epochs(conn, target) is None:
            await self._begin(conn, target)

    async def intact(self, conn: Conn, target: Target) -> bool:
        known = await self._epochs(conn, target)
        if known is not None and await self.index(target).epoch() in known:
            self._lost.discard(target.id)
            return True
        self._lost.add(target.id)
        return False

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        async with (
            self._connect() as own
        ):  # `conn` is in the engine's transaction: nothing there is durable yet
            if target.id in self._lost:
                await self._begin(own, target)
            epoch = await self._announce(own, target)
        failpoints.reach("search_index.announced")
        await self.index(target).apply(epoch, removed, [output.value for output in outputs])

    async def finish(self, conn: Conn, target: Target) -> None:
        """Let segments merge, and give the lock back."""
        if target.id in self._lost:  # there was nothing to make again
            await self._begin(conn, target)
        await self.index(target).close()

    async def drop(self, conn: Conn, target: Target) -> None:
        await self.index(target).drop()
        await conn.execute(self._sql["forget"], self._named(target))

    async def close(self) -> None:
        """Give every lock back, also after a run that did not come to its end. The sink can be used again."""
        for index in self._indexes.values():
            await index.close()

    async def probe(self, target: Target) -> None:
        """Raises Outage where a write would fail now, whatever is written."""
        async with self._connect() as own:
            if target.id in self._lost:
                await self._begin(own, target)
            known = await self._epochs(own, target)
        if known is None or await self.index(target).epoch() not in known:
            raise self._strange(target)
        await self.index(target).probe()

    async def _begin(self, conn: Conn, target: Target) -> None:
        epoch = self._clock.token()
        await self.index(target).create(epoch)
        failpoints.reach("search_index.created")
        await conn.execute(self._sql["begin"], {**self._named(target), "epoch": epoch})
        failpoints.reach("search_index.begun")
        self._lost.discard(target.id)

    async def _announce(self, own: Conn, target: Target) -> int:
        current, epoch = await self.index(target).epoch(), self._clock.token()
        parameters = {**self._named(target), "current": current, "next": epoch}
        async with transaction(own, SYNCHRONOUS):
            cursor = await own.execute(self._sql["intend"], parameters)
            known = await cursor.fetchone()
        if known is None:
            raise self._strange(target)
        return epoch

    async def _epochs(self, conn: Conn, target: Target) -> tuple[int, int] | None:
        row = await (await conn.execute(self._sql["epochs"], self._named(target))).fetchone()
        return None if row is None else (row[0], row[1])

    def _named(self, target: Target) -> dict[str, str | int]:
        return {"derivation": self._declaration.name, "target": target.id}

    def _strange(self, target: Target) -> Outage:
        return Outage(
            f"the lexical index {self.index(target).path} was lost or replaced while it was being written",
            hint=f"run {self._declaration.source.name} again: it makes the index anew",
        )


class PostgresSink:
    """A table for each target, written in the engine's transaction."""

    transactional = True

    def __init__(self, declaration: Declaration, columns: Sequence[Column] = ()) -> None:
        self._declaration, self._columns = declaration, tuple(columns)

    def index(self, target: Target) -> PostgresIndex:
        return PostgresIndex(self._declaration, target, self._columns)

    async def prepare(self, conn: Conn, target: Target) -> None:
        await self.index(target).create(conn)

    async def intact(self, conn: Conn, target: Target) -> bool:
        return True

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        await self.index(target).write(conn, removed, [output.value for output in outputs])

    async def finish(self, conn: Conn, target: Target) -> None:
        """Nothing: GIN keeps its own pending list."""

    async def drop(self, conn: Conn, target: Target) -> None:
        await self.index(target).drop(conn)

    async def close(self) -> None:
        """Nothing is held."""

    async def probe(self, target: Target) -> None:
        """Nothing that could be out but the database itself."""
