"""A glance at every derivation: what waits, counted up to a bound, so that it may be done each second.

A queue that is longer than the bound changes by a small part of itself in a second: for it the last sample is told.
Test: postgres/test_server_events.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from instep.database.outages import is_schema
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine import declared
from instep.engine.declaration import Declaration, fragments
from instep.engine.ports import Conn
from instep.errors import Unknown

# Where statistics are stale or missing, a scan of the whole queue for its few dead letters would look cheap.
PLAIN = ("enable_seqscan = off", "max_parallel_workers_per_gather = 0")
BOUND = 20_000  # entries: counting so many takes some 2 ms


@dataclass(frozen=True, slots=True)
class Glance:
    """`depth`: waiting, worked and not absorbed yet; at least that many where it is not `exact`."""

    depth: int
    dead: int
    exact: bool


async def glance(conn: Conn) -> Mapping[str, Glance]:
    """Of every derivation, by name."""
    found: dict[str, Glance] = {}
    for source in await declared.source_names(conn):
        try:
            declarations = await declared.read_declarations(conn, await declared.read_source(conn, source))
            async with transaction(conn, *PLAIN):
                for one in declarations:
                    found[one.name] = await _one(conn, one)
        except (psycopg.Error, Unknown) as error:
            if isinstance(error, psycopg.Error) and not is_schema(error):
                raise
            # It was removed while we looked.
    return found


async def _one(conn: Conn, declaration: Declaration) -> Glance:
    sql = Statements("instep.engine", "glance.sql", **fragments(declaration))
    values = {"bit": declaration.bit, "bound": BOUND + 1}
    row = await (await conn.execute(sql["glance"], values, prepare=False)).fetchone()
    assert row is not None, "a select of counts gives one row"
    waiting, unabsorbed, dead = row
    return Glance(waiting + unabsorbed, dead, max(waiting, unabsorbed, dead) <= BOUND)
