"""A glance at every derivation: what waits, counted up to a bound, so that it may be done each second.

A queue that is longer than the bound changes by a small part of itself in a second: for it the last sample is told.
Test: postgres/test_server_events.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from instep.database.statements import Statements
from instep.engine import declared
from instep.engine.declaration import fragments
from instep.engine.ports import Conn

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
        for one in await declared.read_declarations(conn, await declared.read_source(conn, source)):
            sql = Statements("instep.engine", "glance.sql", **fragments(one))
            row = await (await conn.execute(sql["glance"], {"bit": one.bit, "bound": BOUND + 1})).fetchone()
            assert row is not None, "a select of counts gives one row"
            waiting, unabsorbed, dead = row
            exact = max(waiting, unabsorbed, dead) <= BOUND
            found[one.name] = Glance(waiting + unabsorbed, dead, exact)
    return found
