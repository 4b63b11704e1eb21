"""A million of everything, made once for a session: what the guards of the hot statements look at.

`articles.embed` has the backlog: a million waiting entries, stamps and rows of the change log; its newest wave is parked
and due, the one before it is leased (at the end of the keys: a merge that walks an index looks harmless at the start). `articles.search` is drained but for what bites a claim that comes back empty: a
million dead letters, a million entries that wait for tomorrow, one leased wave, some suspects and some lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from finding_scene import Scene, make
from psycopg import sql

from instep.clock import SYSTEM
from instep.database.transactions import INDEX_ONLY, WORKER
from instep.engine.absorb import Absorber
from instep.engine.commit import Committer
from instep.engine.outbox import SUSPECT_CLAIMS, Outbox
from instep.engine.sweep import Sweeper

ROWS = 1_000_000
WAVE = 500
FEW = 20  # suspects, and as many lost
STALE = ROWS // 1000  # rows that the stale statistics know of
TABLES = (
    "articles",
    "change_articles",
    "outbox_articles_embed",
    "stamp_articles_embed",
    "outbox_articles_search",
)
STATISTICS = ("stale", "missing", "fresh")  # in this order: they are made one from the other

FILL = {
    "articles": "insert into articles (id_1, body) select g, 'x' from generate_series({first}, {last}) g",
    "outbox_articles_embed": "insert into instep.outbox_articles_embed (key_1, target, sort_key)"
    " select g, 't1', '2020-01-01'::timestamptz + make_interval(mins => g::integer)"
    " from generate_series({first}, {last}) g",
    "stamp_articles_embed": "insert into instep.stamp_articles_embed (key_1, target, content_hash)"
    " select g, 't1', 'h' from generate_series({first}, {last}) g",
    "dead": "insert into instep.outbox_articles_search (key_1, target, sort_key, failed_at, error_kind)"
    " select g, 't1', '2020-01-01', now(), 'input refused' from generate_series({first}, {last}) g",
    "future": "insert into instep.outbox_articles_search (key_1, target, sort_key, not_before)"
    " select {rows} + g, 't1', '2020-01-01', now() + interval '1 day' from generate_series({first}, {last}) g",
}  # fmt: skip
SPECIAL = (
    "update instep.outbox_articles_embed set token = 7, lease_until = now() + interval '1 day'"
    f" where key_1 between {ROWS - 2 * WAVE + 1} and {ROWS - WAVE}",
    f"update instep.outbox_articles_embed set not_before = now() - interval '1 hour' where key_1 > {ROWS - WAVE}",
    "insert into instep.outbox_articles_search (key_1, target, sort_key, claims, token, lease_until)"
    f" select {3 * ROWS} + g, 't1', '2021-01-01', case when g <= {WAVE} then 1 when g <= {WAVE + FEW}"
    f" then {SUSPECT_CLAIMS} else {SUSPECT_CLAIMS + 1} end, 7,"
    f" now() + case when g <= {WAVE} then interval '1 day' else interval '-1 hour' end"
    f" from generate_series(1, {WAVE + 2 * FEW}) g",
)


@dataclass(frozen=True, slots=True)
class Hot:
    """A hot statement with what it is given, its settings, and the indexes without which it is lost."""

    statement: bytes
    values: Mapping[str, Any]
    settings: tuple[str, ...]
    indexes: tuple[str, ...]


async def filled(dsn: str) -> Scene:
    """Autovacuum is off, so that the statistics stay those of the first thousandth."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        scene = await make(conn, newest="'2020-01-01'::timestamptz")
        await scene.install()
        for table in TABLES:
            await conn.execute(f"alter table {_qualified(table)} set (autovacuum_enabled = off)".encode())
        for first, last in ((1, STALE), (STALE + 1, ROWS)):
            for statement in FILL.values():
                await conn.execute(statement.format(first=first, last=last, rows=ROWS).encode())
            if last == STALE:
                await conn.execute("analyze")
        for statement in SPECIAL:
            await conn.execute(statement.encode())
    return scene


def _qualified(table: str) -> str:
    return f"public.{table}" if table == "articles" else f"instep.{table}"


@contextmanager
def database(server_dsn: str, template: str) -> Iterator[tuple[str, Scene]]:
    """Made, and dropped at the end. The scene has no open connection."""
    name = f"million_{time.monotonic_ns()}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    dsn = psycopg.conninfo.make_conninfo(server_dsn, dbname=name)
    try:
        yield dsn, asyncio.run(filled(dsn))
    finally:
        with psycopg.connect(server_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def make_statistics(dsn: str, kind: str) -> None:
    """Stale: of a thousandth of the rows, as `filled` leaves them. Missing: as after pg_upgrade or a restore."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        if kind == "fresh":
            # What earlier guards have rolled back is dead: away with it.
            conn.execute(f"vacuum (analyze, index_cleanup on) {', '.join(map(_qualified, TABLES))}".encode())
        if kind == "missing":
            tables = [_qualified(table) for table in TABLES]
            conn.execute("delete from pg_statistic where starelid = any(%s::regclass[])", (tables,))
            conn.execute(
                "update pg_class set reltuples = -1, relpages = 0, relallvisible = 0 where oid = any(%s::regclass[])"
                " or oid in (select indexrelid from pg_index where indrelid = any(%s::regclass[]))",
                (tables, tables),
            )


def backlog(scene: Scene, wave: int = WAVE) -> dict[str, Hot]:
    """The hot statements on the waiting million, for waves of that size."""
    target, embed = scene.targets[0], scene.embed
    outbox = Outbox(embed, target, SYSTEM, lease_seconds=900, max_attempts=3)
    committer = Committer(embed, target, None)  # type: ignore[arg-type]
    keys = outbox.columns.arrays((key,) for key in range(ROWS - WAVE - wave + 1, ROWS - WAVE + 1))
    hashes = {"hash": [b"x"] * wave}
    claim = {"target": "t1", "lease": 900.0, "token": 9, "suspect": SUSPECT_CLAIMS, "limit": wave}
    after = {**claim, "after": "2020-02-01 00:00:00+00", "key_1": 44_640}
    ours = {"target": "t1", "token": 7, "lease": 900.0, **keys}
    failures = {
        **ours, **hashes, "max_attempts": 3, "backoff": 4.0, "generation": [2] * wave, "kind": ["x"] * wave,
        "message": ["x"] * wave, "deterministic": [False] * wave, "jitter": [1.0] * wave,
    }  # fmt: skip
    fast = (WORKER, *INDEX_ONLY)
    waiting, entries, stamps = (
        ("outbox_articles_embed_claim",),
        ("outbox_articles_embed_pkey",),
        ("stamp_articles_embed_pkey",),
    )
    absorb = Absorber(scene.source, scene.declarations)._statement
    return {
        **{f"claim_{order}": Hot(outbox._sql[f"claim_{order}"], claim, fast, waiting) for order in ("newest", "oldest")},
        **{name: Hot(outbox._sql[name], after, fast, waiting) for name in ("claim_newest_after", "claim_oldest_after")},
        **{name: Hot(outbox._sql[name], ours, fast, entries) for name in ("lock", "renew", "release", "park")},
        "let_in": Hot(outbox._sql["let_in"], {"limit": wave}, fast, ("outbox_articles_embed_parked",)),
        "fail": Hot(outbox._sql["fail"], failures, (), (*entries, "articles_pkey")),
        "absorb": Hot(
            absorb, {"source": "articles", "cursor": ROWS - 4 * WAVE, "limit": wave}, fast,
            ("change_articles_pkey", "articles_pkey", *entries),
        ),
        "read_stamps": Hot(committer._sql["read_stamps"], ours, (), stamps),
        "fence": Hot(committer._sql["fence"], {**ours, "id": target.id}, (WORKER,), entries),
        "stamp": Hot(committer._sql["stamp"], {**ours, **hashes}, (WORKER,), stamps),
        "unstamp": Hot(committer._sql["unstamp"], ours, (WORKER,), stamps),
    }  # fmt: skip


def drained(scene: Scene) -> dict[str, Hot]:
    """What runs again and again where nothing is left but dead letters, tomorrow's entries and other workers' waves."""
    declaration = scene.declarations[1]
    target = next(target for target in scene.targets if target.derivation == declaration.name)
    outbox = Outbox(declaration, target, SYSTEM, lease_seconds=900, max_attempts=3)
    claim = {"target": "t1", "lease": 900.0, "token": 9, "suspect": SUSPECT_CLAIMS, "limit": WAVE}
    after = {**claim, "after": "2021-01-01 00:00:00+00", "key_1": 3 * ROWS + WAVE // 2}
    fast, waiting = (WORKER, *INDEX_ONLY), ("outbox_articles_search_claim",)
    return {
        **{f"claim_{order}": Hot(outbox._sql[f"claim_{order}"], claim, fast, waiting) for order in ("newest", "oldest")},
        **{name: Hot(outbox._sql[name], after, fast, waiting) for name in ("claim_newest_after", "claim_oldest_after")},
        "claim_suspect": Hot(outbox._sql["claim_suspect"], claim, fast, waiting),
        "bury_lost": Hot(outbox._sql["bury_lost"], claim, INDEX_ONLY, waiting),
        "let_in": Hot(outbox._sql["let_in"], {"limit": WAVE}, fast, ("outbox_articles_search_parked",)),
    }  # fmt: skip


def sweeps(scene: Scene, size: int) -> dict[str, Hot]:
    """A piece of a sweep and its bound, over `size` keys in the middle."""
    sweeper = Sweeper(scene.embed, scene.targets, size)
    lower, upper = (20_000,), (20_000 + size,)
    indexes = ("articles_pkey", "stamp_articles_embed_pkey", "outbox_articles_embed_pkey")
    given = {"derivation": scene.embed.name, **sweeper._range(lower, upper)}
    bound = {**sweeper._range(lower), "size": size}
    return {
        "piece": Hot(sweeper._statement("piece", lower, upper), given, (WORKER,), indexes),
        "bound": Hot(sweeper._statement("bound", lower), bound, (), indexes),
    }


def on(scene: Scene, conn: psycopg.AsyncConnection[Any]) -> Scene:
    return replace(scene, conn=conn)
