"""Sources, derivations and targets as rows: read and written here alone.

A source is held by its OID: a table that was renamed or moved to another schema is found under its present name.
"""

from __future__ import annotations

from psycopg.types.json import Jsonb

from instep.database.statements import Statements
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.ports import Conn
from instep.engine.relations import near
from instep.errors import Unknown

_SQL = Statements("instep.engine", "declared.sql")


async def read_source(conn: Conn, name: str) -> Source:
    """The source of that name, under its table's present schema and name. Raises Unknown for another."""
    row = await (await conn.execute(_SQL["read_source"], {"name": name})).fetchone()
    if row is None:
        known = await source_names(conn)
        raise Unknown(f"There is no source {name!r}.", hint=near(name, known, "sources"))
    ours, oid, schema, table, key, parts = row
    columns = tuple(KeyColumn(c["name"], c["type"], c.get("collation", "")) for c in key)
    return Source(ours, oid, schema, table, columns, tuple(parts))


async def source_names(conn: Conn) -> list[str]:
    """The names of all sources, sorted."""
    return [name for (name,) in await (await conn.execute(_SQL["source_names"], {})).fetchall()]


async def source_of_relation(conn: Conn, oid: int) -> str | None:
    """The name of the source that a table already is, or None."""
    row = await (await conn.execute(_SQL["source_of_relation"], {"oid": oid})).fetchone()
    return row[0] if row else None


async def read_declarations(conn: Conn, source: Source) -> list[Declaration]:
    """All derivations of a source, in the order of their bits."""
    rows = await (await conn.execute(_SQL["read_declarations"], {"source": source.name})).fetchall()
    return [
        Declaration(name, source, bit, tuple(watch), hash, eligible, newest, catalogue, options)
        for name, bit, watch, hash, eligible, newest, catalogue, options in rows
    ]


async def derivation_names(conn: Conn) -> list[str]:
    return [name for (name,) in await (await conn.execute(_SQL["derivation_names"], {})).fetchall()]


async def read_declaration(conn: Conn, name: str) -> Declaration:
    """One derivation by its name ("articles.embed"). Raises Unknown for another."""
    row = await (await conn.execute(_SQL["source_of_derivation"], {"name": name})).fetchone()
    if row is not None:
        for declaration in await read_declarations(conn, await read_source(conn, row[0])):
            if declaration.name == name:
                return declaration
    known = await derivation_names(conn)
    raise Unknown(f"There is no derivation {name!r}.", hint=near(name, known, "derivations"))


async def read_targets(conn: Conn, derivation: str) -> list[Target]:
    """All targets of a derivation, the reading one first, retired ones last."""
    rows = await (await conn.execute(_SQL["read_targets"], {"derivation": derivation})).fetchall()
    return [Target(*row) for row in rows]


async def reading_ids(conn: Conn, source: str) -> tuple[int, ...]:
    """The targets of a source that are read: the same as before means that nothing of it was promoted, removed or added
    anew. None of a source that is not there."""
    rows = await (await conn.execute(_SQL["reading_ids"], {"source": source})).fetchall()
    return tuple([id for (id,) in rows])


async def write_source(conn: Conn, source: Source) -> None:
    """Insert or update the row of a source."""
    key = [{"name": c.name, "type": c.type, "collation": c.collation} for c in source.key]
    values = {"name": source.name, "oid": source.oid, "schema": source.schema, "table": source.table}
    await conn.execute(_SQL["write_source"], {**values, "key": Jsonb(key), "parts": list(source.parts)})


async def write_declaration(conn: Conn, declaration: Declaration) -> None:
    """Insert or change one; a change of what is computed or eligible makes a sweep due."""
    values = {
        "name": declaration.name,
        "source": declaration.source.name,
        "bit": declaration.bit,
        "catalogue": declaration.catalogue,
        "watch": list(declaration.watch),
        "eligible": declaration.eligible,
        "hash": declaration.hash,
        "newest": declaration.newest,
        "options": Jsonb(dict(declaration.options)),
    }
    await conn.execute(_SQL["write_declaration"], values)


async def write_target(conn: Conn, target: Target) -> bool:
    """Insert a target that is not there yet (its `id` and `state` are not looked at: the first of a derivation is
    the one that is read, another is filled beside it). False: it was there."""
    values = {"derivation": target.derivation, "target": target.name, "spec": Jsonb(dict(target.spec))}
    return await (await conn.execute(_SQL["write_target"], values)).fetchone() is not None
