"""Add, list, show and remove tables. Adding is all or nothing; removing leaves no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instep import failpoints
from instep.catalogues.tables.declare import Declared
from instep.catalogues.tables.options import CATALOGUE
from instep.catalogues.tables.view import drop_outputs, write_view
from instep.chunks.sink import ChunkSink
from instep.clock import SYSTEM, Clock
from instep.engine import install as engine_install
from instep.engine.declaration import Declaration, Source, Target
from instep.engine.declared import (
    read_declarations,
    read_source,
    read_targets,
    source_names,
)
from instep.engine.ports import Conn, Derivation
from instep.engine.relations import near
from instep.engine.schema_change import schema_change
from instep.errors import Refused, Unknown

EMBED, SEARCH = ".embed", ".search"


@dataclass(frozen=True, slots=True)
class Added:
    name: str
    already: bool  # it was there, with the same options: nothing was changed
    seconds: float
    waited: float  # of these, for locks that other sessions held

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "already": self.already, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Table:
    """One table as it is declared now."""

    source: Source
    declarations: tuple[Declaration, ...]
    targets: tuple[Target, ...]

    @property
    def embed(self) -> Declaration:
        return next(d for d in self.declarations if d.name.endswith(EMBED))

    @property
    def search(self) -> Declaration:
        return next(d for d in self.declarations if d.name.endswith(SEARCH))

    def as_dict(self) -> dict[str, Any]:
        options = self.search.options
        return {
            "name": self.source.name,
            "table": f"{self.source.schema}.{self.source.table}",
            "key": [{"name": column.name, "type": column.type} for column in self.source.key],
            "text": list(self.embed.options["text"]),
            "where": "" if self.embed.eligible == "true" else self.embed.eligible,
            "newest": self.embed.options["newest"],
            "filters": list(options["filters"]),
            "show": list(options["show"]),
            "engine": options["engine"],
            "watched": {d.name: list(d.watch) for d in self.declarations},
            "view": f"instep.{self.source.name}_chunks",
            "targets": [
                {"derivation": t.derivation, "name": t.name, "state": t.state, **t.spec} for t in self.targets
            ],
        }


async def add(conn: Conn, declared: Declared, *, clock: Clock = SYSTEM) -> Added:
    """Install what was declared: triggers, queues, chunk tables and the view. The same again changes nothing; another
    declaration under the same name is refused, and names what differs."""
    began, name = clock.monotonic(), declared.source.name
    present = False

    async def check() -> None:  # two processes may be adding it at the same moment
        nonlocal present
        present = name in await source_names(conn)
        if present:
            await refuse_other(conn, declared)

    installed = await engine_install.install(
        conn, declared.source, declared.declarations, declared.targets, check=check, clock=clock
    )
    try:
        reading = next(
            t for t in installed.targets if t.derivation == declared.embed.name and t.state == "reading"
        )

        async def outputs() -> None:
            await engine_install.lock(conn)  # `create table if not exists` fails where two do it at once
            await ChunkSink(declared.embed).prepare(conn, reading)
            await write_view(conn, declared.embed, reading)
            failpoints.reach("add.prepared")

        await schema_change(conn, outputs, f"make the chunk tables of {name}", clock=clock)
        failpoints.reach("add.committed")
    except BaseException:
        if not present and not conn.broken:
            await remove(conn, name, clock=clock)
        raise
    return Added(name, present, clock.monotonic() - began, installed.waited)


async def refuse_other(conn: Conn, declared: Declared) -> None:
    """Raises Refused, with the differences, where the name is declared otherwise."""
    name = declared.source.name
    if differences := _differences(await shown(conn, name), declared):
        raise Refused(
            f"{name} is already added, otherwise: {'; '.join(differences)}.",
            hint=f"instep tables show {name} · instep tables remove {name}",
        )


async def listed(conn: Conn) -> list[Table]:
    """All tables of this catalogue, by name."""
    tables = [await _table(conn, name) for name in await source_names(conn)]
    return [table for table in tables if any(d.catalogue == CATALOGUE for d in table.declarations)]


async def shown(conn: Conn, name: str) -> Table:
    """One table. Raises Refused, with near names, for one that was never added."""
    if name not in (known := await source_names(conn)):
        raise Unknown(f"There is no table {name!r} here.", hint=near(name, known, "tables"))
    return await _table(conn, name)


async def remove(
    conn: Conn, name: str, derivations: Sequence[Derivation] = (), *, clock: Clock = SYSTEM
) -> float:
    """Take a table away: triggers, queues, chunk tables, view, and what the sinks of `derivations` hold (as
    `derivations.build` gives them). The user's table keeps its rows. Works while workers run, and again where an
    earlier removal broke off. Returns the seconds waited for locks."""
    present = name in (known := await source_names(conn))
    dropped = False

    async def outputs() -> None:
        nonlocal dropped
        dropped = await drop_outputs(conn, name) or dropped
        failpoints.reach("remove.outputs")

    targets: Sequence[Target] = ()
    if present:
        targets = (await _table(conn, name)).targets
        await _refuse_dependants(conn, name, clock)
    waited = await engine_install.remove(conn, name, clock=clock) if present else 0.0
    for derivation in derivations:
        for target in targets:
            if target.derivation == derivation.declaration.name and target.derivation.endswith(SEARCH):
                await derivation.sink.drop(conn, target)
    waited += await schema_change(conn, outputs, f"drop the chunks of {name}", clock=clock)
    if not present and not dropped:
        raise Unknown(f"There is no table {name!r} here.", hint=near(name, known, "tables"))
    return waited


async def _refuse_dependants(conn: Conn, name: str, clock: Clock) -> None:
    """Try it and take it back: what is refused must be refused before the triggers are gone."""

    async def attempt() -> None:
        await drop_outputs(conn, name)
        raise _TakenBack

    try:
        await schema_change(conn, attempt, f"see what stands on the chunks of {name}", clock=clock)
    except _TakenBack:
        return


class _TakenBack(Exception):
    """Rolls a transaction back that was only an attempt."""


async def _table(conn: Conn, name: str) -> Table:
    source = await read_source(conn, name)
    declarations = tuple(await read_declarations(conn, source))
    targets = [target for d in declarations for target in await read_targets(conn, d.name)]
    return Table(source, declarations, tuple(targets))


def _differences(table: Table, declared: Declared) -> list[str]:
    def compare(what: str, had: Any, wants: Any) -> list[str]:
        return [] if had == wants else [f"{what} is {_shown(had)}, not {_shown(wants)}"]

    found = compare("--where", table.embed.eligible, declared.embed.eligible)
    for option in ("text", "newest"):
        found += compare(f"--{option}", table.embed.options[option], declared.embed.options[option])
    for option in ("filters", "show", "engine"):
        found += compare(f"--{option}", table.search.options[option], declared.search.options[option])
    names = [target.name for target in table.targets if target.derivation == declared.embed.name]
    if declared.embed_target.name not in names:
        found += compare("the target", ", ".join(names), declared.embed_target.name)
    return found


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    if isinstance(value, Mapping):
        return str(dict(value))
    return str(value) or "nothing"
