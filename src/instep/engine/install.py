"""Install, verify and remove what a source needs: our tables, the trigger functions, the triggers on the user's table.

A table is held by its OID, watched columns by type and place, partitions by their list, so that `verify`, which each
run calls first, can say what was done to the table since. Tests: tests/postgres/test_install.py.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from instep import failpoints
from instep.clock import SYSTEM, Clock
from instep.database.statements import Statements, typed
from instep.engine import capture, parts, pause, sweep, templates
from instep.engine.declaration import MAX_NAME, Declaration, Source, Target, raw
from instep.engine.declared import (
    read_declarations,
    read_source,
    read_targets,
    source_of_relation,
    write_declaration,
    write_source,
    write_target,
)
from instep.engine.ports import Conn
from instep.engine.relations import unique_keys
from instep.engine.schema_change import schema_change
from instep.errors import Refused

_SQL = Statements("instep.engine", "install.sql")


@dataclass(frozen=True, slots=True)
class Installed:
    declarations: tuple[Declaration, ...]
    targets: tuple[Target, ...]  # as they are now, with their ids
    waited: float  # seconds, for locks that other sessions held


@dataclass(frozen=True, slots=True)
class Problem:
    """`statement`: SQL that mends it, where one does; `hidden`: row-level security hides rows from this role."""

    what: str
    mend: str
    statement: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """What a source's table was found to be: `repaired` was put right (and a sweep made due), `problems` need a
    person: nothing of this source can be worked before."""

    repaired: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    waited: float = 0.0


async def install(
    conn: Conn,
    source: Source,
    declarations: Sequence[Declaration],
    targets: Sequence[Target],
    *,
    check: Callable[[], Awaitable[None]] | None = None,
    clock: Clock = SYSTEM,
) -> Installed:
    """Make `declarations` of `source` and their `targets` (ids are not looked at) exist, with tables and triggers, in
    one transaction. Safe to call again and from several processes at once: `check` is called when no other can
    install, and refuses by raising. Raises Refused where it cannot be done."""
    _check(source, declarations)

    async def work() -> None:
        await lock(conn)
        failpoints.reach("install.locked")
        if check is not None:
            await check()
        other = await source_of_relation(conn, source.oid)
        if other is not None and other != source.name:
            raise Refused(
                f"{source.schema}.{source.table} is already the source {other!r}.",
                hint=f"Use {other!r}, or remove it first.",
            )
        template = await templates.recorded(conn, source.name)
        if template is not None:
            if told := templates.newer(source.name, template):
                raise Refused(f"{told}.", hint="update instep")
            await templates.upgrade(conn, source)  # before what is new is made from the newest
        await write_source(conn, source)
        for declaration in declarations:
            await write_declaration(conn, declaration)
        for target in targets:
            if await write_target(conn, target):
                await sweep.make_due(conn, f"target {target.name} added", derivation=target.derivation)
        await conn.execute(parts.statements(declarations[0])["create_change"], {})
        for declaration in declarations:
            bound = parts.statements(declaration)
            for name in parts.CREATE:
                await conn.execute(bound[name], {})
        failpoints.reach("install.tables")
        await _capture(conn, source)
        failpoints.reach("install.captured")

    waited = await schema_change(
        conn, work, f"install triggers on {source.schema}.{source.table}", clock=clock
    )
    failpoints.reach("install.committed")
    names = {declaration.name for declaration in declarations}
    present = [d for d in await read_declarations(conn, source) if d.name in names]
    made = [target for d in present for target in await read_targets(conn, d.name)]
    return Installed(tuple(present), tuple(made), waited)


async def lock(conn: Conn) -> None:
    """Until the transaction ends, nobody else installs or removes anything."""
    await conn.execute(_SQL["lock"], {})


async def verify(conn: Conn, source_name: str, *, clock: Clock = SYSTEM) -> Verified:
    """Compare a source's table with what was installed: mend triggers, take up new partitions and names, and say
    what cannot be mended. A few catalogue reads where all is well; locks only where something is to be mended."""
    row = await (await conn.execute(_SQL["recorded"], {"name": source_name})).fetchone()
    source, found = await located(conn, source_name)
    if found:
        return Verified(problems=found)
    assert row is not None
    oid, schema, table, _, partitions, template, suspects, _ = row
    where, now = f"{schema}.{table}", f"{source.schema}.{source.table}"
    repaired: list[str] = []
    if (source.oid, source.schema, source.table) != (oid, schema, table):
        place = {"name": source_name, "oid": source.oid, "schema": source.schema, "table": source.table}
        await conn.execute(_SQL["relocate"], place)
        if source.oid != oid:
            repaired.append(f"{now} is another table than before (a restore, say): taken up again")
        else:
            repaired.append(f"{where} is now called {now}")
    if suspects:
        repaired.append(
            f"capture had trouble with {suspects} statements on {now}: a sweep finds what they changed"
        )
    members = await capture.family(conn, source.oid)
    seen = {m.oid for m in members} - {source.oid}
    due = source.oid != oid
    changes = _partition_changes(members, set(partitions), seen)
    waited = 0.0
    if changes or due or template != capture.TEMPLATE or capture.faulty(members):
        mended: list[str] = []

        async def work() -> None:
            mended.clear()
            await lock(conn)
            mended.extend(await templates.upgrade(conn, source))
            mended.extend(await _capture(conn, source))
            await sweep.make_due(
                conn,
                "; ".join([*changes, *mended])[:500] or ("restored" if due else "capture renewed"),
                source=source_name,
            )
            failpoints.reach("verify.mended")

        waited = await schema_change(conn, work, f"mend the triggers on {now}", clock=clock)
        failpoints.reach("verify.committed")
        repaired += [*changes, *mended]
    return Verified(tuple(repaired), (), waited)


async def problems(conn: Conn, source_name: str) -> tuple[Problem, ...]:
    """What of a source's table needs a person, as `verify` says it; a few catalogue reads, mends nothing."""
    return (await located(conn, source_name))[1]


async def located(conn: Conn, source_name: str) -> tuple[Source, tuple[Problem, ...]]:
    """The source as it is called now, and what of its table or columns nobody but a person can mend."""
    recorded = await read_source(conn, source_name)
    row = await (await conn.execute(_SQL["recorded"], {"name": source_name})).fetchone()
    assert row is not None
    oid, schema, table, columns, _, template = row[:6]
    if told := templates.newer(source_name, template):
        return recorded, (Problem(told, "update instep"),)
    function = capture.function_name(source_name, "insert")
    found = await (await conn.execute(_SQL["located"], {"oid": oid, "function": function})).fetchone()
    if found is None:
        mend = f"`instep tables remove {source_name}`, and add the table again if it was made anew."
        return recorded, (Problem(f"the table {schema}.{table} does not exist any more", mend),)
    source = replace(recorded, oid=found[0], schema=found[1], table=found[2])
    if found[3]:  # turned on since, or this worker's role is another than the one that added the table
        what = f"row-level security of {source.schema}.{source.table} hides rows from this role: they would be cleared"
        mend = "Let instep's role bypass it: alter role … bypassrls; or let it own the table (without force)."
        bypass = typed("instep.engine", "install.sql", "bypass", role=sql.Identifier(conn.info.user))
        return source, (Problem(what, mend, bypass, hidden=True),)
    return source, tuple(_column_problems(source, columns, await capture.columns_now(conn, source.oid)))


async def remove(conn: Conn, source_name: str, *, clock: Clock = SYSTEM) -> float:
    """Take a source away without a trace: triggers, functions, our tables, rows. Works while workers run: its
    targets are retired first, which they see. Outputs are the catalogue's to drop. Returns the seconds waited."""
    source = await read_source(conn, source_name)
    declarations = await read_declarations(conn, source)

    async def retire() -> None:
        await conn.execute(_SQL["retire"], {"source": source_name})

    async def work() -> None:
        await lock(conn)
        await capture.drop_capture(conn, source, await capture.family(conn, source.oid))
        for declaration in declarations:
            await conn.execute(parts.statements(declaration)["drop_tables"], {})
        await conn.execute(parts.drop_change(source_name), {})
        await pause.forget(conn, [source_name, *(d.name for d in declarations)])
        for forgotten in ("forget_runs", "forget_holds"):
            await conn.execute(_SQL[forgotten], {"derivations": [d.name for d in declarations]})
        for name in ("forget_targets", "forget_derivations", "forget_markers", "forget_source"):
            await conn.execute(_SQL[name], {"source": source_name})
        failpoints.reach("remove.dropped")

    waited = await schema_change(conn, retire, f"retire the targets of {source_name}", clock=clock)
    failpoints.reach("remove.retired")
    waited += await schema_change(conn, work, f"remove {source_name}", clock=clock)
    failpoints.reach("remove.committed")
    return waited


async def _capture(conn: Conn, source: Source) -> list[str]:
    """Functions for all derivations that the source has, triggers on all its members, and what was seen of both."""
    declarations = await read_declarations(conn, source)
    columns = await capture.columns_now(conn, source.oid)
    watched = _watched(source, declarations, columns)
    await _check_parts(conn, source)
    await capture.write_functions(conn, source, declarations, watched)
    members = await capture.family(conn, source.oid)
    for member in members:
        foreign = member.triggers.get("instep_insert")
        if foreign is not None and foreign[1] != capture.function_name(source.name, "insert"):
            raise Refused(
                f"{member.schema}.{member.table} already has the triggers of another source ({foreign[1]}).",
                hint="A table, or a part of it, can be one source. Remove the other first.",
            )
    done = await capture.mend_triggers(conn, source, members)
    keys = {column.name for column in source.key}
    seen = {
        "name": source.name,
        "columns": Jsonb(
            {c.name: {"type": c.type, "attnum": c.attnum, "key": c.name in keys} for c in watched.values()}
        ),
        "partitions": [m.oid for m in members if m.oid != source.oid],
        "template": capture.TEMPLATE,
    }
    await conn.execute(_SQL["seen"], seen)
    return done


def _check(source: Source, declarations: Sequence[Declaration]) -> None:
    if not declarations:
        raise Refused(f"{source.name}: nothing is to be derived from it.")
    for name in (source.name, *(d.suffix for d in declarations)):
        if len(name) > MAX_NAME or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            raise Refused(
                f"The name {name!r} cannot be used: at most {MAX_NAME} of a-z, 0-9 and _, not beginning with a digit.",
                hint="Give another with --name.",
            )


async def _check_parts(conn: Conn, source: Source) -> None:
    """A key that is null would fail the writer's statement; one that is in no index would be looked up by a scan."""
    names = (*(column.name for column in source.key), *source.parts)
    if source.parts and names not in await unique_keys(conn, source.oid):
        raise Refused(
            f"{source.schema}.{source.table} has no unique key over ({', '.join(names)}), in this order and never null.",
            hint="Rows that together make one entity need one: the entity's key first, then what tells its rows apart.",
        )


def _watched(
    source: Source, declarations: Sequence[Declaration], columns: Mapping[str, capture.Watched]
) -> dict[str, capture.Watched]:
    key = [*(column.name for column in source.key), *source.parts]
    names = dict.fromkeys([*key, *(name for d in declarations for name in d.watch)])
    place = f"{source.schema}.{source.table}"
    for name in names:
        if name not in columns:
            raise Refused(f"{place} has no column {name!r}.", hint=f"It has: {', '.join(columns)}.")
        if columns[name].generated == "v":
            raise Refused(
                f"{place}.{name} is a virtual generated column: a trigger sees NULL in it.",
                hint="Watch the columns that it is made from, or make it STORED.",
            )
    return {name: columns[name] for name in names}


def _column_problems(
    source: Source, recorded: Mapping[str, Mapping[str, Any]], now: Mapping[str, capture.Watched]
) -> list[Problem]:
    where, again = f"{source.schema}.{source.table}", f"`instep tables remove {source.name}` and add it again"
    by_place = {column.attnum: column for column in now.values()}
    problems = []
    for name, was in recorded.items():
        column = now.get(name)
        if column is None:
            moved = by_place.get(was["attnum"])
            if moved is not None:
                what = f"{where}.{name} was renamed to {moved.name}"
                mend = f"Rename it back, or {again} with {moved.name} in the place of {name}."
                back = _typed(
                    source, "rename_back", now=sql.Identifier(moved.name), column=sql.Identifier(name)
                )
            else:
                what = f"{where}.{name} was dropped"
                mend = f"Add the column again, or {again} without it."
                back = _typed(source, "add_again", column=sql.Identifier(name), type=raw(was["type"]))
            problems.append(Problem(what, mend, back))
        elif _unmodified(column.type) != _unmodified(was["type"]):
            problems.append(
                Problem(
                    f"{where}.{name} was {was['type']} and is now {column.type}",
                    f"Give it its type back, or {again}.",
                    _typed(source, "retype", column=sql.Identifier(name), type=raw(was["type"])),
                )
            )
    return problems


def _typed(source: Source, name: str, **fragments: sql.Composable) -> str:
    return typed("instep.engine", "install.sql", name, table=source.relation, **fragments)


def _unmodified(type: str) -> str:
    """A longer varchar is no other type: our key columns have no length."""
    return "character varying" if type.startswith("character varying") else type


def _partition_changes(members: Sequence[capture.Member], recorded: set[int], seen: set[int]) -> list[str]:
    names = {m.oid: f"{m.schema}.{m.table}" for m in members}
    changes = [f"{names[oid]} was attached" for oid in sorted(seen - recorded)]
    if gone := len(recorded - seen):
        changes.append(f"{gone} partition{'s were' if gone > 1 else ' was'} detached or dropped")
    return changes
