"""Whether changes of the sources are seen: triggers, columns, partitions, row-level security, replication."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from instep.database.statements import Statements, typed
from instep.engine.capture import TEMPLATE, TRIGGERS
from instep.upkeep.doctor.findings import Check, Finding, ok, several
from instep.upkeep.doctor.look import Look, Seen

_FILE = ("instep.upkeep.doctor", "capture.sql")
_SQL = Statements(*_FILE)
_HOW = {
    "O": "in origin sessions alone",
    "A": "always",
    "R": "in replica sessions alone",
    "D": "never (disabled)",
}
NOTHING = "no table is added"
_RUN = "put them back and look through the whole table"


async def triggers(look: Look) -> list[Finding]:
    found, whole, tables = [], 0, 0
    for seen in await look.sources():
        wrong = _wrong(seen)
        (template,) = await look.row(_SQL["template"], source=seen.source.name)
        if template != TEMPLATE:
            wrong.append(f"its functions are of template {template}, this release has {TEMPLATE}")
        if wrong:
            shown = "; ".join(wrong[:3]) + ("; …" if len(wrong) > 3 else "")
            detail = f"{_where(seen)}: {shown}: some writes are not seen"
            found.append(Finding("failed", detail, _RUN, (), (_run(seen),)))
        members = [member for member in seen.members if member.kind != "f"]
        whole += len(members) * len(TRIGGERS)
        tables += len(members)
    return found or ok(f"{whole} of {whole} on {several(tables, 'table')}" if tables else NOTHING)


def _wrong(seen: Seen) -> list[str]:
    wrong = []
    recorded = [member for member in seen.members if member.kind != "f"]
    for member in recorded:
        for trigger, enabled in TRIGGERS.items():
            on = "" if len(recorded) == 1 else f" on {member.schema}.{member.table}"
            state = member.triggers.get(trigger, ("",))[0]
            if not state:
                wrong.append(f"{trigger}{on} is missing")
            elif state != enabled:
                wrong.append(f"{trigger}{on} fires {_HOW.get(state, state)}, not {_HOW[enabled]}")
    return wrong


async def columns(look: Look) -> list[Finding]:
    found = []
    for seen in await look.sources():
        for problem in seen.problems:
            if not problem.hidden:
                statements = (problem.statement,) if problem.statement else ()
                do = "put it back" if statements else problem.mend
                found.append(Finding("failed", f"{problem.what}: nothing of it is worked", do, statements))
        (suspect,) = await look.row(_SQL["suspect"], source=seen.source.name)
        if suspect:
            detail = f"{_where(seen)}: {several(suspect, 'statement')} could not be read by its triggers"
            found.append(Finding("warn", detail, "find what they changed", (), (_run(seen),)))
    watched = sum(len({name for d in seen.declarations for name in d.watch}) for seen in await look.sources())
    same = (
        f"{several(watched, 'watched column')} as when {'it was' if watched == 1 else 'they were'} declared"
    )
    return found or ok(same if watched else NOTHING)


async def partitions(look: Look) -> list[Finding]:
    found, number = [], 0
    for seen in await look.sources():
        (recorded,) = await look.row(_SQL["partitions"], source=seen.source.name)
        inside = [member for member in seen.members if member.oid != seen.source.oid]
        parts = {m.oid: f"{m.schema}.{m.table}" for m in inside if m.kind != "f"}
        number += len(parts)
        if fresh := [name for oid, name in parts.items() if oid not in recorded]:
            detail = f"{_where(seen)}: {', '.join(fresh)} not taken up yet: what was in it, or is written to it, is not seen"
            found.append(Finding("failed", detail, "take it up", (), (_run(seen),)))
        if gone := len(set(recorded) - {m.oid for m in inside}):
            detail = f"{_where(seen)}: {several(gone, 'partition')} detached or dropped, and its rows are still found"
            found.append(Finding("failed", detail, "clear them", (), (_run(seen),)))
        if foreign := [f"{m.schema}.{m.table}" for m in seen.members if m.kind == "f"]:
            detail = f"{', '.join(foreign)}: a foreign table takes no such triggers; its changes are found by sweeps alone"
            statements = tuple(_disinherit(seen, m.oid) for m in seen.members if m.kind == "f")
            found.append(Finding("warn", detail, "take it out, if that is too late", statements))
    return found or ok(
        f"{several(number, 'partition')}, all taken up" if number else "no table is partitioned"
    )


def _disinherit(seen: Seen, oid: int) -> str:
    part = next(member for member in seen.members if member.oid == oid)
    relation = sql.Identifier(part.schema, part.table)
    return typed(*_FILE, "disinherit", table=seen.source.relation, child=relation)


async def row_security(look: Look) -> list[Finding]:
    found, shielded = [], 0
    for seen in await look.sources():
        hidden = [problem for problem in seen.problems if problem.hidden]
        found += [Finding("failed", p.what, "let instep's role bypass it", (p.statement,)) for p in hidden]
        shielded += len(await look.rows(_SQL["row_security"], oid=seen.source.oid))
    return found or ok(
        f"on {several(shielded, 'table')}, and bypassed by this role" if shielded else "on no table"
    )


async def replication(look: Look) -> list[Finding]:
    found, fed = [], []
    for seen in await look.sources():
        oids = [member.oid for member in seen.members] or [seen.source.oid]
        for name, enabled in await look.rows(_SQL["subscriptions"], oids=oids):
            fed.append(f"{_where(seen)} by {name}")
            if not enabled:
                statement = typed(*_FILE, "enable_subscription", name=sql.Identifier(name))
                detail = (
                    f"{_where(seen)} is fed by the subscription {name}, which is disabled: its rows grow old"
                )
                found.append(Finding("warn", detail, "enable it", (statement,)))
    return found or ok(
        f"{', '.join(fed)}: its rows are seen by the row triggers"
        if fed
        else "no table is fed by a subscription"
    )


def _where(seen: Seen) -> str:
    return f"{seen.source.schema}.{seen.source.table}"


def _run(seen: Seen) -> str:
    return f"instep run {seen.source.name}"


CHECKS: Sequence[Check] = (
    Check("triggers", "A write that no trigger sees is found by the next sweep only. (pg_restore --disable-triggers and ENABLE TRIGGER ALL change how triggers fire.)", triggers),
    Check("capture", "A watched column or table that is not as it was declared stops all work on it.", columns),
    Check("partitions", "A partition that was attached brings rows, and takes writes, that no trigger of ours saw.", partitions),
    Check("row-security", "Rows that are hidden from instep's role look deleted, and what was derived from them is cleared.", row_security),
    Check("replication", "Rows that a subscription applies fire row triggers alone; a subscription that stopped brings none.", replication),
)  # fmt: skip
