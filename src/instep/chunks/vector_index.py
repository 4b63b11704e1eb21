"""The HNSW index of a target's vectors: built by itself, concurrently, once its first fill is as good as over.

As good as over means that less than a tenth as many entries wait as entities are done: a trickle of writes, which
never lets the outbox be empty, must not postpone the index for ever (PEERS extra, pgai#791; test_trickle_does_not_postpone).

Two processes: CREATE INDEX CONCURRENTLY takes no transaction around it, a session's advisory lock does not hold behind
PgBouncer, and two such builds end in a deadlock when the first is nearly done. So a second connection holds a
transaction's advisory lock for as long as the build runs (test_two_processes_at_once); a crash frees it.
"""

from __future__ import annotations

from typing import Any, Literal

from psycopg import errors, sql

from instep import failpoints
from instep.chunks.names import ChunkTables
from instep.chunks.vector_type import known_type, pgvector_schema
from instep.database.pool import Session
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine.declaration import Declaration, Target
from instep.engine.ports import Conn

FEWEST_ROWS = 1_000
"""Below this an exact scan is quicker than the index, and always right."""

WAITING_SHARE = 0.1

Seen = Literal["valid", "too few", "filling", "due"]
Built = Literal["valid", "busy", "built"]


async def look(conn: Conn, tables: ChunkTables, declaration: Declaration, target: Target) -> Seen:
    """Whether it is time to build: cheap where the index stands or the table is small."""
    statements = _bound(tables, outbox=declaration.outbox, stamp=declaration.stamp)
    if await _state(conn, statements, tables):
        return "valid"
    if (await _row(conn, statements["many"], {"rows": FEWEST_ROWS}))[0] < FEWEST_ROWS:
        return "too few"
    entities, waiting = await _row(
        conn, statements["filled"], {"target": target.name, "share": WAITING_SHARE}
    )
    return "filling" if waiting > entities * WAITING_SHARE else "due"


async def build(conn: Conn, holder: Conn, tables: ChunkTables, target: Target) -> Built:
    """Build it, and let the planner know; "busy" where another process or person is at it. `conn` builds: in autocommit
    mode, outside a transaction, straight to the server. `holder`, another connection, keeps others away. Raises what
    PostgreSQL raises (no disk, no right); what such a build leaves is dropped by the next."""
    operators = sql.SQL("{}.{}").format(
        sql.Identifier(await pgvector_schema(conn)),
        sql.Identifier(f"{known_type(str(target.spec['type']))}_cosine_ops"),
    )
    statements = _bound(tables, operators=operators)
    async with transaction(holder):
        (alone,) = await _row(holder, statements["alone"], {"name": tables.index_name})
        if not alone:
            return "busy"
        await holder.execute(statements["let_go"], {})
        failpoints.reach("vector_index.due")
        try:
            if await _cleared(conn, statements, tables):
                return "valid"
        except errors.LockNotAvailable:
            return "busy"
        failpoints.reach("vector_index.cleared")
        (rows,) = await _row(conn, statements["rows"], {})
        await _create(conn, statements, _memory(rows, target))
        failpoints.reach("vector_index.built")
        await conn.execute(statements["analyze"], {})
        failpoints.reach("vector_index.analyzed")
    return "built"


async def _cleared(conn: Conn, statements: Statements, tables: ChunkTables) -> bool:
    """Drop an invalid leftover. True: a valid index stands. Raises LockNotAvailable while somebody builds by hand."""
    async with transaction(conn, "lock_timeout = '3s'"):
        await conn.execute(statements["lock"], {})
        state = await _state(conn, statements, tables)
        if state is False:
            await conn.execute(statements["drop_leftover"], {})
    return bool(state)


async def _create(conn: Conn, statements: Statements, megabytes: int) -> None:
    ours = not (isinstance(conn, Session) and conn.pooled)  # a session of our own: what is set ends with it
    try:
        for workers in ("2", "0") if ours else ("0",):
            if ours:
                await conn.execute(statements["set_memory"], {"memory": f"{megabytes}MB", "workers": workers})
            try:
                await conn.execute(statements["build"], {})
                return
            except errors.DiskFull:
                # Parallel builds share memory of this size; containers often allow 64 MB of it (/dev/shm).
                if workers == "0":
                    raise
                async with transaction(conn, "lock_timeout = '5s'"):
                    await conn.execute(statements["drop_leftover"], {})
    finally:
        if ours and not conn.broken:
            await conn.execute(statements["reset_memory"])


def _memory(rows: int, target: Target) -> int:
    """Megabytes that hold the whole graph (beyond, the build slows down): a vector and some 450 bytes of neighbours
    for each row, at least 64, at most 1,024."""
    width = int(target.spec["dimensions"]) * (2 if target.spec["type"] == "halfvec" else 4)
    return max(64, min(1_024, int(rows * (width + 450) * 1.2 / 1_048_576) + 1))


def _bound(tables: ChunkTables, **more: sql.Composable) -> Statements:
    return Statements(
        "instep.chunks",
        "vector_index.sql",
        chunk=tables.chunk,
        layout=tables.layout,
        index=tables.index,
        index_bare=sql.Identifier(tables.index_name),
        **more,
    )


async def _state(conn: Conn, statements: Statements, tables: ChunkTables) -> bool | None:
    """True: valid, False: invalid, None: there is none."""
    parameters = {"name": tables.index_name, "chunk": tables.chunk.as_string(None)}
    row = await (await conn.execute(statements["state"], parameters)).fetchone()
    return None if row is None else bool(row[0])


async def _row(conn: Conn, statement: bytes, parameters: dict[str, Any]) -> tuple[Any, ...]:
    row = await (await conn.execute(statement, parameters)).fetchone()
    assert row is not None  # aggregates always give one
    return row
