"""What doctor asks of a table's outputs: the vector index, and the index of words outside PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import sql

from instep.catalogues.tables.options import CATALOGUE
from instep.catalogues.tables.view import view_name, view_statement
from instep.chunks import vector_index
from instep.chunks.names import chunk_tables
from instep.chunks.sink import settings_of
from instep.database.statements import Statements, typed
from instep.engine.declaration import Columns, Declaration, Target, raw
from instep.engine.parts import made_anew
from instep.search.columns import read_columns
from instep.search.engines.postgres import PostgresIndex
from instep.search.engines.tantivy import TantivyIndex
from instep.search.sinks import index_path
from instep.upkeep.doctor.findings import Check, Finding, ok, several
from instep.upkeep.doctor.look import Look

_FILE = ("instep.catalogues.tables", "checks.sql")
_SQL = Statements(*_FILE)


async def vectors(look: Look) -> list[Finding]:
    found, states = [], []
    for declaration, targets in await _ours(look):
        for target in targets:
            if "dimensions" not in target.spec:
                continue
            tables, key = chunk_tables(declaration, target), Columns(declaration.source.key).listed()
            hashed = sql.SQL("{}, text_hash").format(key)
            made_with = settings_of()
            faults = await _table(look, declaration, target, tables.chunk, hashed, made_with[0])
            faults += await _table(look, declaration, target, tables.layout, key, made_with[1])
            found += faults
            view = view_name(declaration.source.name).as_string(None)
            if target.state == "reading" and not (await look.row(_SQL["stands"], table=view))[0]:
                statement = view_statement(declaration, target)
                found.append(Finding("warn", f"the view {view} is gone", "make it", (statement,)))
            if any(fault.state == "failed" for fault in faults):
                continue
            seen = await vector_index.look(look.conn, tables, declaration, target)
            states.append(seen)
            if seen == "due":
                detail = f"{declaration.name} ({target.name}) has no valid vector index: each search reads all vectors"
                found.append(Finding("warn", detail, "build it", (), (f"instep run {declaration.name}",)))
    early = [state for state in states if state != "valid"]
    return found or ok(f"{states.count('valid')} valid" + (f", {len(early)} not needed yet" if early else ""))


async def words(look: Look) -> list[Finding]:
    found, outside, inside = [], 0, 0
    for declaration, targets in await _ours(look):
        engine = declaration.options.get("engine")
        for target in targets:
            if engine == "tantivy":
                found += await _on_disk(look, declaration, target)
                outside += 1
            elif engine == "postgres":
                found += await _inside(look, declaration, target)
                inside += 1
    return found or ok(
        f"{several(outside, 'index', 'indexes')} on disk as the database knows, {inside} in PostgreSQL"
    )


async def _on_disk(look: Look, declaration: Declaration, target: Target) -> list[Finding]:
    known = await look.rows(_SQL["epochs"], derivation=declaration.name, target=target.id)
    if not known:
        return []  # nothing was written yet
    columns = await read_columns(look.conn, declaration.source, declaration.options["filters"])
    path = index_path(look.settings.data_dir / "indexes", declaration, target)
    epoch = await TantivyIndex(path, declaration.source.key, columns).epoch()
    if epoch in known[0]:
        return []
    what = "is not there, or damaged" if epoch is None else "is of another time than the database"
    detail = f"the index of words of {declaration.name} in {path} {what}"
    do = "make it again (where workers have another data directory, look there)"
    return [Finding("failed", detail, do, (), (f"instep run {declaration.name}",))]


async def _inside(look: Look, declaration: Declaration, target: Target) -> list[Finding]:
    index = PostgresIndex(declaration, target, ())
    found = await _table(look, declaration, target, index.table, Columns(declaration.source.key).listed())
    table = index.table.as_string(None)
    if not found and not (await look.row(_SQL["has_words_index"], table=table))[0]:
        detail = f"{table} has no index over its words: each search reads all rows"
        found.append(Finding("warn", detail, "make it", (), (f"instep run {declaration.name}",)))
    return found


async def _table(
    look: Look,
    declaration: Declaration,
    target: Target,
    table: sql.Identifier,
    key: sql.Composable,
    settings: Mapping[str, str] | None = None,
) -> list[Finding]:
    """A table of outputs: that it is there, with its primary key and the settings it was made with."""
    name = table.as_string(None)
    stands, keyed, now = await look.row(_SQL["stands"], table=name)
    if not stands:
        detail = f"{name}, outputs of {declaration.name} ({target.name}), is gone"
        statements, command = made_anew(declaration, target), f"instep run {declaration.name}"
        return [Finding("failed", detail, "make them again", statements, (command,))]
    if not keyed:
        statement = typed(*_FILE, "add_key", table=table, key=key)
        return [Finding("warn", f"{name} has no primary key any more", "make it", (statement,))]
    lost = {option: value for option, value in (settings or {}).items() if now.get(option) != value}
    if lost:
        options = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(option), raw(value)) for option, value in lost.items()
        )
        statement = typed(*_FILE, "set_options", table=table, options=options)
        detail = f"{name} has other settings than it was made with: {', '.join(lost)}"
        return [Finding("warn", detail, "set them", (statement,))]
    return []


async def _ours(look: Look) -> list[tuple[Declaration, tuple[Target, ...]]]:
    return [(d, targets) for d, targets in await look.derivations() if d.catalogue == CATALOGUE]


CHECKS: Sequence[Check] = (
    Check("vector-index", "Without its HNSW index a search by meaning reads every vector: right, and slow.", vectors),
    Check("search-index", "An index of words that is not the one the database knows finds what is gone, or nothing.", words),
)  # fmt: skip
