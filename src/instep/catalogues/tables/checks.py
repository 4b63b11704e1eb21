"""What doctor asks of a table's outputs: the vector index, and the index of words outside PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from instep.catalogues.tables.options import CATALOGUE
from instep.chunks import vector_index
from instep.chunks.names import chunk_tables
from instep.database.statements import Statements
from instep.engine.declaration import Declaration, Target
from instep.engine.install import made_anew
from instep.search.columns import read_columns
from instep.search.engines.tantivy import TantivyIndex
from instep.search.sinks import index_path
from instep.upkeep.doctor.findings import Check, Finding, ok, several
from instep.upkeep.doctor.look import Look

_SQL = Statements("instep.catalogues.tables", "checks.sql")


async def vectors(look: Look) -> list[Finding]:
    found, states = [], []
    for declaration, targets in await _ours(look):
        for target in targets if "dimensions" in (targets[0].spec if targets else {}) else ():
            tables = chunk_tables(declaration, target)
            (stands,) = await look.row(_SQL["stands"], table=tables.chunk.as_string(None))
            if not stands:
                where = tables.chunk.as_string(None)
                detail = f"{where}, the chunks of {declaration.name} ({target.name}), is gone"
                statements, command = made_anew(declaration, target), f"instep run {declaration.name}"
                found.append(Finding("failed", detail, "make them again", statements, (command,)))
                continue
            seen = await vector_index.look(look.conn, tables, declaration.outbox, target)
            states.append(seen)
            if seen == "due":
                detail = f"{declaration.name} ({target.name}) has no valid vector index: each search reads all vectors"
                found.append(Finding("warn", detail, "build it", (), (f"instep run {declaration.name}",)))
    early = [state for state in states if state != "valid"]
    return found or ok(f"{states.count('valid')} valid" + (f", {len(early)} not needed yet" if early else ""))


async def words(look: Look) -> list[Finding]:
    found, here, inside = [], 0, 0
    for declaration, targets in await _ours(look):
        if declaration.options.get("engine") != "tantivy":
            inside += "engine" in declaration.options
            continue
        columns = await read_columns(look.conn, declaration.source, declaration.options["filters"])
        for target in targets:
            known = await look.rows(_SQL["epochs"], derivation=declaration.name, target=target.id)
            if not known:
                continue  # nothing was written yet
            path = index_path(look.settings.data_dir / "indexes", declaration, target)
            epoch = await TantivyIndex(path, declaration.source.key, columns).epoch()
            here += 1
            if epoch in known[0]:
                continue
            what = "is not there, or damaged" if epoch is None else "is of another time than the database"
            detail = f"the index of words of {declaration.name} in {path} {what}"
            do = "make it again (where workers have another data directory, look there)"
            found.append(Finding("failed", detail, do, (), (f"instep run {declaration.name}",)))
    return found or ok(
        f"{several(here, 'index', 'indexes')} on disk as the database knows, {inside} in PostgreSQL"
    )


async def _ours(look: Look) -> list[tuple[Declaration, tuple[Target, ...]]]:
    return [(d, targets) for d, targets in await look.derivations() if d.catalogue == CATALOGUE]


CHECKS: Sequence[Check] = (
    Check("vector-index", "Without its HNSW index a search by meaning reads every vector: right, and slow.", vectors),
    Check("search-index", "An index of words that is not the one the database knows finds what is gone, or nothing.", words),
)  # fmt: skip
