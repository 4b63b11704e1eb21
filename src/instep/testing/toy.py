"""A small real derivation, for tests of the engine: text in upper case, with faults on demand.

It keeps its output in PostgreSQL as a catalogue would, so that invariants are checked by plain SQL; what a model
server would do wrong is switched on by `faults` and by words in the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from instep.database.statements import Statements, fragment
from instep.engine.declaration import Columns, Declaration, Key, Target, fragments
from instep.engine.ports import Conn, Item, Loaded, Output
from instep.errors import Permanent


@dataclass
class Faults:
    """What goes wrong. `on_compute` sees the texts of each call and may raise; `held` stops compute until set."""

    on_compute: Callable[[Sequence[str]], None] | None = None
    on_load: Callable[[Sequence[Key]], None] | None = None
    on_write: Callable[[Sequence[Output]], None] | None = None
    on_probe: Callable[[], None] | None = None
    refused: frozenset[str] = frozenset()  # texts for which compute returns a Permanent in their place
    held: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class ToySink:
    transactional = True

    def __init__(self, declaration: Declaration, faults: Faults) -> None:
        columns = Columns(declaration.source.key)
        self._columns, self._faults = columns, faults
        self._sql = Statements(
            "instep.testing",
            "toy.sql",
            **fragments(declaration),
            on_t_k=columns.equal("t", "k"),
            key_shout_unnest=columns.unnest(("shout", "text")),
        )
        self.finished = 0

    async def prepare(self, conn: Conn, target: Target) -> None:
        await conn.execute(self._sql["create"], {})

    async def intact(self, conn: Conn, target: Target) -> bool:
        return True

    async def write(
        self, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        if self._faults.on_write:
            self._faults.on_write(outputs)
        keys = [*removed, *(output.key for output in outputs)]
        await conn.execute(self._sql["delete"], {"target": target.name, **self._columns.arrays(keys)})
        values = {"target": target.name, "shout": [output.value for output in outputs]}
        await conn.execute(
            self._sql["insert"], values | self._columns.arrays(output.key for output in outputs)
        )

    async def finish(self, conn: Conn, target: Target) -> None:
        self.finished += 1

    async def drop(self, conn: Conn, target: Target) -> None:
        await self.prepare(conn, target)  # one table for all targets: it may not be there yet
        await conn.execute(self._sql["drop"], {"target": target.name})

    async def all(self, conn: Conn, target: Target) -> dict[Key, str]:
        rows = await (await conn.execute(self._sql["all"], {"target": target.name})).fetchall()
        return {row[:-1]: row[-1] for row in rows}


class ToyDerivation:
    def __init__(self, declaration: Declaration, text: str) -> None:
        columns = Columns(declaration.source.key)
        self.declaration, self.faults = declaration, Faults()
        self.sink = ToySink(declaration, self.faults)
        self.calls: list[list[str]] = []  # the texts of each call of compute
        self.probes = 0
        self._columns = columns
        on_row = sql.SQL(" and ").join(
            sql.SQL("r.{} = a.{}").format(sql.Identifier(column.name), sql.Identifier(name))
            for column, name in zip(declaration.source.key, columns.names, strict=True)
        )
        self._sql = Statements(
            "instep.testing",
            "toy.sql",
            **fragments(declaration),
            text=sql.Identifier(text),
            on_row=on_row,
            eligible=fragment(declaration.eligible),
        )

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        if self.faults.on_load:
            self.faults.on_load(keys)
        cursor = await conn.execute(self._sql["load"], self._columns.arrays(keys))
        rows = await cursor.fetchall()
        return Loaded([Item(row[:-2], row[-2], row[-1] or "") for row in rows])

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        texts = [item.content for item in items]
        self.calls.append(texts)
        self.faults.arrived.set()
        if self.faults.held is not None:
            await self.faults.held.wait()
        if self.faults.on_compute:
            self.faults.on_compute(texts)
        return [
            Permanent(f"refused: {item.content}", kind="input refused")
            if item.content in self.faults.refused
            else Output(item.key, item.hash, item.content.upper())
            for item in items
        ]

    async def probe(self, target: Target) -> None:
        self.probes += 1
        if self.faults.on_probe:
            self.faults.on_probe()


class Recorder:
    """An Observer that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, object]]] = []

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        self.events.append((name, dict(fields)))

    def named(self, name: str) -> list[Mapping[str, object]]:
        return [fields for event, fields in self.events if event == name]
