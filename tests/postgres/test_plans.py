"""The hot statements stay on their indexes at 100 thousand rows, in both forms of plan, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from explained import most_read, plan_of
from finding_scene import Scene, make

from instep.clock import SYSTEM
from instep.database.transactions import INDEX_ONLY, WORKER
from instep.engine.absorb import Absorber
from instep.engine.commit import Committer
from instep.engine.outbox import Outbox
from instep.engine.sweep import Sweeper

ROWS = 100_000
WAVE = 500
TABLES = ("articles", "change_articles", "outbox_articles_embed", "stamp_articles_embed")


async def filled(conn, statistics: str) -> Scene:
    """Every row waits and has a stamp that is not its content's; the first wave is leased, the last one parked and due."""
    scene = await make(conn, newest="'2020-01-01'::timestamptz")
    await scene.install()
    if statistics == "stale":
        await conn.execute("analyze")
    for table in TABLES:
        schema = "public" if table == "articles" else "instep"
        await conn.execute(f"alter table {schema}.{table} set (autovacuum_enabled = off)")
    await conn.execute(f"insert into articles (id_1, body) select g, 'x' from generate_series(1, {ROWS}) g")
    await conn.execute(
        "insert into instep.outbox_articles_embed (key_1, target, sort_key, token, lease_until, claims, not_before)"
        " select g, 't1', '2020-01-01'::timestamptz + make_interval(mins => g::integer),"
        f" case when g <= {WAVE} then 7 end, case when g <= {WAVE} then now() + interval '1 hour' end, 0,"
        f" case when g > {ROWS - WAVE} then now() - interval '1 hour' end from generate_series(1, {ROWS}) g"
    )
    await conn.execute(
        "insert into instep.stamp_articles_embed (key_1, target, content_hash)"
        f" select g, 't1', 'h' from generate_series(1, {ROWS}) g"
    )
    if statistics == "fresh":
        await conn.execute("analyze")
    return scene


def statements(scene: Scene) -> Mapping[str, tuple[bytes, Mapping[str, Any], tuple[str, ...]]]:
    """Name → statement, what it is given, and the settings that it runs with."""
    target = scene.targets[0]
    outbox = Outbox(scene.embed, target, SYSTEM, lease_seconds=900, max_attempts=3)
    committer = Committer(scene.embed, target, None)
    keys = outbox.columns.arrays((key,) for key in range(1, WAVE + 1))
    hashes = {"hash": [b"x"] * WAVE}
    claim = {"target": "t1", "lease": 900.0, "token": 9, "suspect": 5, "limit": WAVE}
    after = {**claim, "after": "2020-02-01 00:00:00+00", "key_1": 44_640}
    ours = {"target": "t1", "token": 7, "lease": 900.0, **keys}
    failures = {
        **ours, **hashes, "max_attempts": 3, "backoff": 4.0, "generation": [2] * WAVE, "kind": ["x"] * WAVE,
        "message": ["x"] * WAVE, "deterministic": [False] * WAVE, "jitter": [1.0] * WAVE,
    }  # fmt: skip
    fast = (WORKER, *INDEX_ONLY)
    absorb = Absorber(scene.source, scene.declarations)._statement
    return {
        **{f"claim_{order}": (outbox._sql[f"claim_{order}"], claim, fast) for order in ("newest", "oldest")},
        **{name: (outbox._sql[name], after, fast) for name in ("claim_newest_after", "claim_oldest_after")},
        **{name: (outbox._sql[name], ours, fast) for name in ("lock", "renew", "release", "park")},
        "let_in": (outbox._sql["let_in"], {"limit": WAVE}, fast),
        "fail": (outbox._sql["fail"], failures, ()),
        "absorb": (absorb, {"source": "articles", "cursor": 0, "limit": WAVE}, fast),
        "read_stamps": (committer._sql["read_stamps"], ours, ()),
        "fence": (committer._sql["fence"], {**ours, "id": target.id}, (WORKER,)),
        "stamp": (committer._sql["stamp"], {**ours, **hashes}, (WORKER,)),
        "unstamp": (committer._sql["unstamp"], ours, (WORKER,)),
    }  # fmt: skip


def faults(plan: str, most: float) -> list[str]:
    """What a hot statement's plan must not have."""
    found = [f"Seq Scan on {table}" for table in TABLES if f"Seq Scan on {table}" in plan]
    if (read := most_read(plan)) > most:
        found.append(f"{read:.0f} rows read")
    return found


@pytest.mark.parametrize("statistics", ["fresh", "stale", "missing"])
async def test_hot_statements_stay_on_their_indexes(conn, statistics):
    scene = await filled(conn, statistics)
    bad = {}
    for form in ("custom", "generic"):
        for name, (statement, values, settings) in statements(scene).items():
            plan = await plan_of(conn, statement, values, form, *settings)
            if found := faults(plan, 2 * WAVE):
                bad[form, name] = found, plan
            if name in ("lock", "fence"):  # sorted keys outside, each row locked inside: in key order
                assert re.search(r"Nested Loop.*Sort Key: k.*LockRows.*Index Scan", plan, re.DOTALL), plan
    assert not bad, "\n\n".join(f"{case}: {found}\n{plan}" for case, (found, plan) in bad.items())


async def test_without_the_claims_index_the_guard_fails(conn):
    scene = await filled(conn, "fresh")
    await conn.execute("drop index instep.outbox_articles_embed_claim")
    for name in ("claim_newest", "claim_oldest_after"):
        statement, values, settings = statements(scene)[name]
        assert faults(await plan_of(conn, statement, values, "custom", *settings), 2 * WAVE)


@pytest.mark.parametrize("statistics", ["fresh", "missing"])
async def test_a_piece_of_a_sweep_reads_its_range(conn, statistics):
    """A twentieth of the keys: source, stamps and outbox by their keys, and the bound by an index alone."""
    scene = await filled(conn, statistics)
    size = ROWS // 20
    sweeper = Sweeper(scene.embed, scene.targets, size)
    lower, upper = (20_000,), (20_000 + size,)
    given = {"derivation": scene.embed.name, **sweeper._range(lower, upper)}
    for form in ("custom", "generic"):
        plan = await plan_of(conn, sweeper._statement("piece", lower, upper), given, form, WORKER)
        assert not faults(plan, size), plan
        bound = await plan_of(
            conn, sweeper._statement("bound", lower), {**sweeper._range(lower), "size": size}, form
        )
        assert not faults(bound, size + 1), bound
        assert re.search(r"Index .*Scan using articles_pkey", bound)
