"""What a measured stretch did to the server: WAL, commits, checkpoints, CPU, dead tuples.

A checkpoint before the stretch makes its first touch of each page a full-page image: they are counted in, and told apart
(`pg_walinspect`). Commits are the database's, the measuring session's own are taken off.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import psycopg
from psycopg import AsyncConnection

OWN_COMMITS = (
    2  # of a look: what its first statement is, and the second, which is counted only after it was taken
)
_FLUSH = "select pg_logical_emit_message(false, 'benchmark', '', true)"  # asynchronous commits may not be written yet
_LOOK = """select pg_current_wal_insert_lsn()::text,
    (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()),
    (select num_done from pg_stat_checkpointer), pg_backend_pid()"""
_WAL = """select (%(after)s::pg_lsn - %(before)s::pg_lsn)::bigint, sum(count)::bigint, sum(fpi_size)::bigint
    from pg_get_wal_stats(%(before)s::pg_lsn, %(after)s::pg_lsn)"""
_DEAD = """select relname, n_dead_tup, n_live_tup, autovacuum_count from pg_stat_user_tables
    where schemaname = 'instep' and n_tup_ins + n_tup_upd + n_tup_del > 0 order by relname"""


@dataclass(frozen=True, slots=True)
class Look:
    lsn: str
    commits: int
    checkpoints: int
    cpu_seconds: float  # of the whole server


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes are of WAL; `image_bytes`, a part of them, of full-page images."""

    wal_bytes: int
    records: int
    image_bytes: int
    commits: int
    checkpoints: int
    cpu_seconds: float

    def each(self, entries: int) -> dict[str, float]:
        return {
            "wal_bytes": self.wal_bytes / entries,
            "wal_bytes_without_images": (self.wal_bytes - self.image_bytes) / entries,
            "commits": self.commits / entries,
            "server_cpu_microseconds": self.cpu_seconds / entries * 1e6,
        }

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


async def look(dsn: str) -> Look:
    """By a session of its own, which takes part in nothing else."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(_FLUSH)
        row = await (await conn.execute(_LOOK)).fetchone()
        assert row is not None
        return Look(row[0], row[1], row[2], _cpu(row[3]))


def _cpu(backend: int) -> float:
    """Of the server that has this backend: of its processes that live, and of those that ended."""
    postmaster = psutil.Process(psutil.Process(backend).ppid())
    ended = postmaster.cpu_times()
    used = ended.user + ended.system + ended.children_user + ended.children_system
    for child in postmaster.children():
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            used += times.user + times.system
    return float(used)


async def begin(dsn: str) -> Look:
    """After a checkpoint, so that every round pays for its full-page images alike."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create extension if not exists pg_walinspect")
        await conn.execute("checkpoint")
    return await look(dsn)


async def since(dsn: str, before: Look) -> Stretch:
    after = await look(dsn)
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create extension if not exists pg_walinspect")
        row = await (await conn.execute(_WAL, {"before": before.lsn, "after": after.lsn})).fetchone()
        assert row is not None
    commits = after.commits - before.commits - OWN_COMMITS
    checkpoints = after.checkpoints - before.checkpoints
    return Stretch(*row, commits, checkpoints, after.cpu_seconds - before.cpu_seconds)


async def dead_tuples(dsn: str) -> dict[str, dict[str, int]]:
    """Of instep's tables that were written, as the statistics know them."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        rows: list[tuple[Any, ...]] = await (await conn.execute(psycopg.sql.SQL(_DEAD))).fetchall()
    return {row[0]: {"dead": row[1], "live": row[2], "autovacuums": row[3]} for row in rows}
