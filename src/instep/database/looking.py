"""Connections for one who only looks (`instep doctor`): they serve on a server that `Database.open` refuses, because
nothing is made there and nothing refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from instep.database import embedded
from instep.database.pool import _SESSION, _SESSION_DIRECT, OLDEST_PGVECTOR, Conn, _connect, _version

if TYPE_CHECKING:
    from instep.settings import Settings


async def look(settings: Settings) -> tuple[Conn, Conn]:
    """One by database_url, as it comes, and one past a pooler, set as a worker's session is. Raises Refused,
    SettingsError and Outage."""
    if settings.database_url is None:
        url = direct = await asyncio.to_thread(embedded.start, settings.data_dir)
    else:
        url, direct = settings.database_url, settings.direct_database_url or settings.database_url
    pooled = await _connect(url, pooler=True)
    try:
        conn = await _connect(direct, pooler=settings.direct_database_url is None)
        await conn.execute(_SESSION + _SESSION_DIRECT)
    except BaseException:
        await pooled.close()
        raise
    return pooled, conn


def pgvector_is_old(version: str) -> bool:
    """It has no iterative scans."""
    return _version(version) < OLDEST_PGVECTOR
