"""Dead letters are not a graveyard: list by kind, show, replay, discard.

A change of content or of target replays them by itself (absorb and sweep do that). Replays and discards commit
synchronously.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from instep import failpoints
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Columns, Declaration, Key, fragments
from instep.engine.ports import Conn

PIECE = 1000
_BY_INDEX = "enable_seqscan = off"  # a million that wait are not read for the few that are dead, whatever statistics say


@dataclass(frozen=True, slots=True)
class Kind:
    """Dead letters of one error kind, with the newest as the example."""

    derivation: str
    kind: str
    count: int
    oldest: datetime
    example_key: Key
    example_error: str


@dataclass(frozen=True, slots=True)
class Letter:
    key: Key
    target: str
    kind: str
    error: str
    attempts: int
    failed_at: datetime
    failed_hash: bytes | None
    discarded_at: datetime | None = None
    discard_reason: str | None = None


class DeadLetters:
    def __init__(self, declaration: Declaration) -> None:
        self._name, self._columns = declaration.name, Columns(declaration.source.key)
        self._sql = Statements(
            "instep.engine", "dead.sql", **fragments(declaration), key_e=self._columns.listed("e")
        )

    async def kinds(self, conn: Conn) -> list[Kind]:
        async with transaction(conn, _BY_INDEX):
            rows = await (await conn.execute(self._sql["kinds"], {}, prepare=False)).fetchall()
        return [
            Kind(self._name, kind, count, oldest, tuple(rest[:-1]), rest[-1])
            for kind, count, oldest, *rest in rows
        ]

    async def letters(
        self,
        conn: Conn,
        kind: str | None = None,
        limit: int = 100,
        *,
        offset: int = 0,
        after: tuple[datetime, Key, str] | None = None,
    ) -> list[Letter]:
        """The newest first; `after`: failed_at, key and target of the last one of the page that came before."""
        width = len(self._columns.names)
        values: dict[str, Any] = {"kind": kind, "limit": limit, "offset": offset}
        if after is not None:
            values |= {"failed_at": after[0], **self._columns.one(after[1]), "target": after[2]}
        async with transaction(conn, _BY_INDEX):
            found = await conn.execute(
                self._sql["letters_after" if after else "letters"], values, prepare=False
            )
            return [Letter(tuple(row[:width]), *row[width:]) for row in await found.fetchall()]

    async def show(self, conn: Conn, key: Key) -> list[Letter]:
        """The letters of one entity, one for each target; discarded ones too."""
        rows = await (await conn.execute(self._sql["show"], self._columns.one(key))).fetchall()
        return [Letter(key, *row) for row in rows]

    async def replay(self, conn: Conn, *, key: Key | None = None, kind: str | None = None) -> int:
        """Make them wait again, with all attempts: one entity's (a discarded one too), a kind's, or all."""
        return await self._change(conn, "replay", key, kind, standing=False)

    async def discard(self, conn: Conn, why: str, *, key: Key | None = None, kind: str | None = None) -> int:
        """Set aside with a reason: out of all counts until the content changes."""
        return await self._change(conn, "discard", key, kind, standing=True, why=why)

    async def _change(
        self, conn: Conn, verb: str, key: Key | None, kind: str | None, *, standing: bool, **values: Any
    ) -> int:
        total = 0
        while True:
            async with transaction(conn):
                if key is not None:
                    locked = await conn.execute(
                        self._sql["lock_key"], {"standing": standing, **self._columns.one(key)}
                    )
                else:
                    locked = await conn.execute(self._sql["lock_kind"], {"kind": kind, "limit": PIECE})
                rows = [place for (place,) in await locked.fetchall()]
                failpoints.reach("dead.locked")
                if rows:
                    await conn.execute(self._sql[verb], {"rows": rows, **values})
                failpoints.reach("dead.changed")
            failpoints.reach("dead.committed")
            total += len(rows)
            if key is not None or len(rows) < PIECE:
                return total
