"""Whether DATABASE_URL leads through a pooler, and of which mode.

A pooler answers with a process number of its own where PostgreSQL gives its backend's, so libpq's number and
pg_backend_pid() differ behind one. Of its mode only behaviour tells: in transaction mode a second client is given the
backend that the first one had while that is still connected, or the first one's changes.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import quote, urlencode

import psycopg

from instep.database.looking import backend, is_behind_pooler
from instep.database.looking import look as connections
from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.settings import variables
from instep.upkeep.doctor.findings import Check, Finding, ok, skipped
from instep.upkeep.doctor.look import Look

TRIES = 20
SECONDS = 10.0  # for a second connection through the pooler to be served

_SQL = Statements("instep.upkeep.doctor", "pooler.sql")
_SWITCH, _DIRECT = variables("pooler")[0], variables("direct_database_url")[0]


async def pooler(look: Look) -> list[Finding]:
    behind, direct_behind = await is_behind_pooler(look.pooled), await is_behind_pooler(look.conn)
    if not behind and not direct_behind:
        if look.settings.pooler:
            detail = f"{_SWITCH} is on, and no pooler is on the way: statements are planned anew each time"
            return [Finding("warn", detail, "switch it off", (), (f"export {_SWITCH}=false",))]
        return ok("no pooler is on the way")
    if not behind:
        return [await _direct(look, f"{_DIRECT} leads through a pooler")]
    try:
        async with asyncio.timeout(SECONDS):
            shared = await _shares(look)
    except (TimeoutError, psycopg.OperationalError):
        return [skipped("there is a pooler, and it gave no second connection to tell its mode by")]
    if not shared:
        return ok("a pooler in session mode")
    found = []
    if not look.settings.pooler:
        detail = "DATABASE_URL leads through a pooler in transaction mode: prepared statements fail there"
        found.append(Finding("failed", detail, "do without them", (), (f"export {_SWITCH}=true",)))
    if direct_behind:
        what = (
            f"{_DIRECT} {'leads through a pooler too' if look.settings.direct_database_url else 'is not set'}"
        )
        found.append(await _direct(look, f"a pooler in transaction mode, and {what}"))
    return found or ok(f"a pooler in transaction mode; {_DIRECT} leads past it")


async def _direct(look: Look, detail: str) -> Finding:
    """Where the server says it is may not be how it is reached from here; it is the best guess there is."""
    more = ": workers and index builds hold session state, which needs the server itself"
    try:
        host, tcp_port, user, name = await look.row(_SQL["address"])
        place, options = "", {}
        if host is None:
            sockets, data, port = await look.row(_SQL["socket"])
            directory = PurePosixPath(data) / sockets.split(",")[0].strip()
            options = {"host": str(directory), "port": port}
        else:
            place = f"[{host}]:{tcp_port}" if ":" in host else f"{host}:{tcp_port}"
    except psycopg.errors.InsufficientPrivilege:
        return Finding("failed", detail + more, f"set {_DIRECT} to the server's own address")
    url = f"postgresql://{quote(user)}@{place}/{quote(name)}"
    if options:
        url += "?" + urlencode(options, safe="/")
    do = "lead it to the server (its password added, where it has one)"
    return Finding("failed", detail + more, do, (), (f"export {_DIRECT}={shlex.quote(url)}",))


async def _shares(look: Look) -> bool:
    """Whether two clients of DATABASE_URL are served by one backend in turn."""
    other, spare = await connections(look.settings)
    async with other, spare:
        before = await backend(look.pooled)
        for _ in range(TRIES):
            async with transaction(other):
                theirs = await backend(other)
            mine = await backend(look.pooled)
            if theirs in (before, mine) or mine != before:
                return True
    return False


CHECKS: Sequence[Check] = (
    Check(
        "pooler",
        "Behind PgBouncer in transaction mode prepared statements and session state are another client's the next moment.",
        pooler,
        "server",
    ),
)
