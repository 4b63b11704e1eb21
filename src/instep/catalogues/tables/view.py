"""The view `instep.NAME_chunks`, and the removal of everything that stands behind it."""

from __future__ import annotations

from psycopg import errors, sql

from instep.chunks.names import chunk_tables
from instep.database.statements import Statements, compose, typed
from instep.engine.declaration import SCHEMA, Columns, Declaration, Target, quoted
from instep.engine.ports import Conn
from instep.errors import Refused

COLUMNS = ("ordinal", "start", "end", "text", "text_hash", "vector")
_PACKAGE, _FILE = "instep.catalogues.tables", "view.sql"


def view_name(source: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, f"{source}_chunks")


def column_names(declaration: Declaration) -> dict[str, str]:
    """Our columns' names in the view: a key column keeps its own, ours of that name gets a `chunk_` before it."""
    taken = {column.name for column in declaration.source.key}
    return {name: f"chunk_{name}" if name in taken else name for name in COLUMNS}


async def write_view(conn: Conn, declaration: Declaration, target: Target) -> None:
    """Make the view show `target`. Call it within the transaction that makes the target the one that is read."""
    statements = Statements(_PACKAGE, _FILE, **_fragments(declaration, target))
    await conn.execute(statements["drop"], {})
    await conn.execute(statements["create"], {})


def view_statement(declaration: Declaration, target: Target) -> str:
    """The statement that makes the view, to be shown to people."""
    return typed(_PACKAGE, _FILE, "create", **_fragments(declaration, target))


def _fragments(declaration: Declaration, target: Target) -> dict[str, sql.Composable]:
    tables, columns = chunk_tables(declaration, target), Columns(declaration.source.key)
    keys = sql.SQL(", ").join(
        compose(_PACKAGE, _FILE, "key_column", ours=sql.Identifier(ours), theirs=quoted(column.name))
        for ours, column in zip(columns.names, columns.key, strict=True)
    )
    return {
        "view": view_name(declaration.source.name),
        "keys": keys,
        "chunk": tables.chunk,
        "layout": tables.layout,
        "on_c_l": columns.equal("c", "l"),
        **{ours: quoted(shown) for ours, shown in column_names(declaration).items()},
    }


async def drop_outputs(conn: Conn, source: str) -> bool:
    """Drop the view and every output table of a source of that name, also where an earlier removal broke off. False:
    there was none. Refused where something of the user's stands on them."""
    try:
        await conn.execute(Statements(_PACKAGE, _FILE, view=view_name(source))["drop"], {})
        cursor = await conn.execute(Statements(_PACKAGE, _FILE)["leftovers"], {"name": source})
        tables = [table for (table,) in await cursor.fetchall()]
        for table in tables:
            bound = Statements(_PACKAGE, _FILE, table=sql.Identifier(SCHEMA, table))
            await conn.execute(bound["drop_table"], {})
        return bool(tables)
    except errors.DependentObjectsStillExist as error:
        raise Refused(
            f"Something of yours stands on what is to be removed: {error.diag.message_detail or error}",
            hint="Drop it first, then remove the table again.",
        ) from error
