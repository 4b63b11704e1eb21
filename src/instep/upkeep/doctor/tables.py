"""instep's own tables: vacuumed, indexed and set as they were installed."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from instep.database.statements import Statements, typed
from instep.engine.declaration import raw
from instep.engine.parts import Part, parts
from instep.upkeep.doctor.findings import Check, Finding, State, ok, several
from instep.upkeep.doctor.look import Look

BEHIND = 5  # times the dead rows at which autovacuum is due
DEAD_ROWS = 20_000  # fewer slow nothing

_FILE = ("instep.upkeep.doctor", "tables.sql")
_SQL = Statements(*_FILE)


async def autovacuum(look: Look) -> list[Finding]:
    found = []
    for name in ("autovacuum", "track_counts"):
        (value,) = await look.row(_SQL["setting"], name=name)
        if value != "on":
            statements = (typed(*_FILE, f"{name}_on"), typed(*_FILE, "reload"))
            found.append(Finding("failed", f"{name} is off: no table is vacuumed by itself", "switch it on", statements))  # fmt: skip
    for schema, table in await look.rows(_SQL["switched_off"]):
        statement = typed(*_FILE, "table_on", table=sql.Identifier(schema, table))
        found.append(
            Finding("failed", f"{schema}.{table} is left out by autovacuum", "let it in", (statement,))
        )
    for schema, table, dead, due in await look.rows(_SQL["dead"], least=DEAD_ROWS, behind=BEHIND):
        statement = typed(*_FILE, "vacuum", table=sql.Identifier(schema, table))
        detail = f"{schema}.{table} has {dead:,} dead rows, and autovacuum was due at {due:,}"
        do = "clear them away (where they stay, an old snapshot holds them)"
        found.append(Finding("warn", detail, do, (statement,)))
    return found or ok("on, and not behind on instep's tables")


async def indexes(look: Look) -> list[Finding]:
    standing = {name: (kind, valid) for name, kind, valid in await look.rows(_SQL["standing"])}
    expected = await _parts(look)
    found = []
    for part in expected.values():
        if part.name in standing or (part.table != part.name and part.table not in standing):
            continue  # an index of a table that is missing comes with it
        state: State = "warn" if part.table != part.name else "failed"
        on = f" on instep.{part.table}" if state == "warn" else ", and what it held"
        found.append(Finding(state, f"instep.{part.name} is missing{on}", "make it", part.statements))
    for name, (kind, valid) in standing.items():
        if kind != "i" or valid:
            continue
        leftover = "_ccnew" in name or "_ccold" in name
        statement = typed(
            *_FILE, "drop_index" if leftover else "reindex", index=sql.Identifier("instep", name)
        )
        detail = (
            f"the index instep.{name} is invalid (a build broke off): it costs each write and serves no query"
        )
        do = "drop it" if leftover else "build it anew"
        found.append(Finding("failed", detail, do, (statement,)))
    return found or ok(f"{several(len(expected), 'table and index', 'tables and indexes')} as installed")


async def storage(look: Look) -> list[Finding]:
    now = {name: dict(options) for name, options in await look.rows(_SQL["options"])}
    found = []
    tables = [part for part in (await _parts(look)).values() if part.storage and part.name in now]
    for part in tables:
        lost = {name: value for name, value in part.storage.items() if now[part.name].get(name) != value}
        if not lost:
            continue
        options = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), raw(value)) for name, value in lost.items()
        )
        table = sql.Identifier("instep", part.name)
        statement = typed(*_FILE, "set_options", table=table, options=options)
        detail = f"instep.{part.name} has other settings than it was made with: {', '.join(lost)}"
        found.append(Finding("warn", detail, "set them", (statement,)))
    return found or ok(f"{several(len(tables), 'table')} with the settings they were made with")


async def _parts(look: Look) -> dict[str, Part]:
    """What was installed, by name: a change log stands for all derivations of its source."""
    return {part.name: part for declaration, _ in await look.derivations() for part in parts(declaration)}


CHECKS: Sequence[Check] = (
    Check("autovacuum", "Queue tables turn over all the time: without vacuum every claim reads more dead rows.", autovacuum),
    Check("indexes", "Without its index a claim reads the whole queue, with an invalid one each write pays for nothing.", indexes),
    Check("storage", "Queue tables keep free space in their pages and are vacuumed early; a dump that was changed or a person may have lost that.", storage),
)  # fmt: skip
