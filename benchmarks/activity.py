"""What a measured stretch did to the server: WAL, commits, checkpoints, dead tuples.

A checkpoint before the stretch makes its first touch of each page a full-page image: they are counted in, and told apart
(`pg_walinspect`). Commits are the database's, the measuring session's own are taken off.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection

OWN_COMMITS = 1  # of a look: its statement, which is counted only after it was taken
_LOOK = """select pg_current_wal_insert_lsn()::text,
    (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()),
    (select num_done from pg_stat_checkpointer),
    pg_stat_force_next_flush()::text"""
_IMAGES = """select count(*), coalesce(sum(record_length), 0)::bigint, coalesce(sum(fpi_length), 0)::bigint,
    coalesce(sum((fpi_length > 0)::integer), 0)::bigint
    from pg_get_wal_records_info(%s::pg_lsn, %s::pg_lsn)"""
_DEAD = """select relname, n_dead_tup, n_live_tup, autovacuum_count from pg_stat_user_tables
    where schemaname = 'instep' and n_tup_ins + n_tup_upd + n_tup_del > 0 order by relname"""


@dataclass(frozen=True, slots=True)
class Look:
    lsn: str
    commits: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes are of WAL; `image_bytes`, a part of them, of full-page images."""

    wal_bytes: int
    records: int
    image_bytes: int
    images: int
    commits: int
    checkpoints: int

    def each(self, entries: int) -> dict[str, float]:
        return {
            "wal_bytes": self.wal_bytes / entries,
            "wal_bytes_without_images": (self.wal_bytes - self.image_bytes) / entries,
            "commits": self.commits / entries,
        }

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


async def look(dsn: str) -> Look:
    """By a session of its own, which takes part in nothing else."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        row = await (await conn.execute(_LOOK)).fetchone()
        assert row is not None
        return Look(row[0], row[1], row[2])


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
        row = await (await conn.execute(_IMAGES, (before.lsn, after.lsn))).fetchone()
        assert row is not None
        difference = await (
            await conn.execute("select (%s::pg_lsn - %s::pg_lsn)::bigint", (after.lsn, before.lsn))
        ).fetchone()
        assert difference is not None
    records, _, image_bytes, images = row
    return Stretch(
        difference[0],
        records,
        image_bytes,
        images,
        after.commits - before.commits - OWN_COMMITS,
        after.checkpoints - before.checkpoints,
    )


async def dead_tuples(dsn: str) -> dict[str, dict[str, int]]:
    """Of instep's tables that were written, as the statistics know them."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        rows: list[tuple[Any, ...]] = await (await conn.execute(psycopg.sql.SQL(_DEAD))).fetchall()
    return {row[0]: {"dead": row[1], "live": row[2], "autovacuums": row[3]} for row in rows}
