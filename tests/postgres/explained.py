"""EXPLAIN of the engine's own statements, as they are executed: with their settings, in either form of plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from psycopg import sql

from instep.database.arrays import PackedArray
from instep.engine.ports import Conn


async def plan_of(conn: Conn, statement: bytes, values: Mapping[str, Any], form: str, *settings: str) -> str:
    """The plan of one execution (form: generic or custom), which is rolled back."""
    text = statement.decode()
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    prepared = text % {name: f"${place}" for place, name in enumerate(names, 1)}
    explain = sql.SQL(
        "explain (analyze, buffers, costs off, timing off, summary off) execute examined ({})"
    ).format(sql.SQL(", ").join(sql.Literal(_plain(values[name])) for name in names))
    async with conn.transaction(force_rollback=True):
        for setting in (*settings, f"plan_cache_mode = force_{form}_plan"):
            await conn.execute(f"set local {setting}")
        await conn.execute(f"prepare examined as {prepared}".encode())
        rows = await (await conn.execute(explain)).fetchall()
        await conn.execute("deallocate examined")
    return "\n".join(line for (line,) in rows)


def _plain(value: Any) -> Any:
    """EXECUTE takes no parameters, and a packed array has no text."""
    return list(value.values) if isinstance(value, PackedArray) else value


def most_read(plan: str) -> float:
    """The most rows that one node gave or dropped, all its loops together."""
    most = 0.0
    for line in plan.splitlines():
        if found := re.search(r"rows=([0-9.]+) loops=(\d+)", line):
            most = max(most, float(found[1]) * int(found[2]))
        if found := re.search(r"Rows Removed by \w+.*: (\d+)", line):
            most = max(most, float(found[1]))
    return most


def pages_read(plan: str) -> int:
    """How many pages the whole statement looked at: rows alone do not show an index that is walked from end to end."""
    found = re.search(r"Buffers: shared((?: \w+=\d+)+)", plan)
    assert found is not None, plan
    return sum(
        int(number) for what, number in re.findall(r"(\w+)=(\d+)", found[1]) if what in ("hit", "read")
    )
