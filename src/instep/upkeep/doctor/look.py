"""What all checks look at: the settings, two connections, and the sources as they are installed.

Nothing is made, changed or locked here; doctor works on a server that `Database.open` refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from instep.clock import Clock
from instep.database.looking import look
from instep.database.pool import Conn, Server, examine
from instep.database.statements import Statements
from instep.engine import capture, declared, install
from instep.engine.capture import Member
from instep.engine.declaration import Declaration, Source, Target
from instep.settings import Settings

_SQL = Statements("instep.upkeep.doctor", "look.sql")


@dataclass(frozen=True, slots=True)
class Seen:
    """A source where it is now (its table may be gone: then `members` is empty), and what is derived from it."""

    source: Source
    declarations: tuple[Declaration, ...]
    targets: tuple[Target, ...]  # those in use
    members: tuple[Member, ...]
    problems: tuple[install.Problem, ...]


@dataclass(slots=True)
class Look:
    """`conn` goes past a pooler, `pooled` as database_url leads; both are in autocommit mode."""

    settings: Settings
    clock: Clock
    conn: Conn
    pooled: Conn
    server: Server
    session: Mapping[str, str]  # what a worker's session has of settings that may stop it
    _sources: list[Seen] | None = field(default=None)

    async def rows(self, statement: bytes, **values: Any) -> list[tuple[Any, ...]]:
        return await (await self.conn.execute(statement, values)).fetchall()

    async def row(self, statement: bytes, **values: Any) -> tuple[Any, ...]:
        found = await self.rows(statement, **values)
        return found[0]

    async def sources(self) -> list[Seen]:
        """All sources; read once."""
        if self._sources is None:
            self._sources = [await self._seen(name) for name in await declared.source_names(self.conn)]
        return self._sources

    async def derivations(self) -> list[tuple[Declaration, tuple[Target, ...]]]:
        """All derivations with their targets in use."""
        return [
            (declaration, tuple(t for t in seen.targets if t.derivation == declaration.name))
            for seen in await self.sources()
            for declaration in seen.declarations
        ]

    async def _seen(self, name: str) -> Seen:
        source, problems = await install.located(self.conn, name)
        declarations = tuple(await declared.read_declarations(self.conn, source))
        targets = [t for d in declarations for t in await declared.read_targets(self.conn, d.name)]
        members = tuple(await capture.family(self.conn, source.oid))
        return Seen(
            source, declarations, tuple(t for t in targets if t.state != "retired"), members, problems
        )


@asynccontextmanager
async def opened(settings: Settings, clock: Clock) -> AsyncIterator[Look]:
    """Raises Refused and Outage where no server lets us in."""
    pooled, conn = await look(settings)
    async with pooled, conn:
        session: dict[str, str] = dict(await (await conn.execute(_SQL["session"], {})).fetchall())
        yield Look(settings, clock, conn, pooled, await examine(conn), session)
