"""Connections for one who only looks (`instep doctor`): they serve on a server that `Database.open` refuses, because
nothing is made there and nothing refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from instep.database import embedded
from instep.database.pool import _SESSION, _SESSION_DIRECT, OLDEST_PGVECTOR, Conn, _connect, _version
from instep.errors import Outage

if TYPE_CHECKING:
    from instep.settings import Settings


ANSWER_SECONDS = 20.0


async def look(settings: Settings) -> tuple[Conn, Conn]:
    """One by database_url, as it comes, and one past a pooler, set as a worker's session is; but where it is behind one
    all the same nothing is set, because it would stay behind for the pooler's other clients. Raises Refused,
    SettingsError and Outage."""
    if settings.database_url is None:
        url = direct = await asyncio.to_thread(embedded.start, settings.data_dir)
    else:
        url, direct = settings.database_url, settings.direct_database_url or settings.database_url
    pooled = await _connect(url, pooler=True)
    try:
        conn = await _connect(direct, pooler=True)
        async with asyncio.timeout(ANSWER_SECONDS):
            if not await is_behind_pooler(conn):
                await conn.execute(_SESSION + _SESSION_DIRECT)
                await conn.execute(b"set application_name = 'instep doctor'")
    except TimeoutError:
        await pooled.close()
        raise Outage(f"PostgreSQL gave no answer within {ANSWER_SECONDS:g} s") from None
    except BaseException:
        await pooled.close()
        raise
    return pooled, conn


async def backend(conn: Conn) -> int:
    """The process that serves this connection at this moment."""
    row = await (await conn.execute(b"select pg_backend_pid()")).fetchone()
    assert row is not None
    return int(row[0])


async def is_behind_pooler(conn: Conn) -> bool:
    """A pooler answers with a process number of its own where PostgreSQL gives its backend's."""
    return await backend(conn) != conn.info.backend_pid


def pgvector_is_old(version: str) -> bool:
    """It has no iterative scans."""
    return _version(version) < OLDEST_PGVECTOR
