"""The hot statements stay on their indexes at a million rows: in both forms of plan, whatever the statistics say, and
none of them without its index. The million is made once (some 15 s): million_scene.py.
"""

from __future__ import annotations

import re
import statistics as figures
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.resources import files
from typing import Any

import million_scene
import psycopg
import pytest
from explained import most_read, pages_read, plan_of
from finding_scene import Scene
from million_scene import FEW, ROWS, STATISTICS, TABLES, WAVE, Hot, backlog, drained, sweeps

from instep.clock import SYSTEM
from instep.engine.outbox import Outbox

pytestmark = pytest.mark.xdist_group("million")  # in one process, so that it is made once

Conn = psycopg.AsyncConnection[Any]
PAGES = 25  # looked at for each row of a wave: some four indexes of height three, and old versions of rows
ABSORBED = 45  # likewise, where each row leaves the log, is looked up in the source, and enters two outboxes
PIECE = 10_000  # keys of a sweep

UNGUARDED = {
    "past_cursor": "a part of the claim",
    "waiting": "counts, up to its limit: it reads what it counts",
}


@pytest.fixture(scope="module")
def million(server_dsn: str, template: str) -> Iterator[tuple[str, Scene]]:
    with million_scene.database(server_dsn, template) as made:
        yield made


@pytest.fixture(scope="module", params=STATISTICS)
def scene(million: tuple[str, Scene], request: pytest.FixtureRequest) -> Scene:
    """The million with stale, missing and fresh statistics."""
    million_scene.make_statistics(million[0], request.param)
    return million[1]


@pytest.fixture
async def conn(million: tuple[str, Scene]) -> AsyncIterator[Conn]:
    async with await psycopg.AsyncConnection.connect(million[0], autocommit=True) as connection:
        yield connection


def faults(plan: str, rows: int, pages: int) -> list[str]:
    """What a hot statement's plan must not have."""
    found = [f"Seq Scan on {table}" for table in TABLES if f"Seq Scan on {table}" in plan]
    if (read := most_read(plan)) > rows:
        found.append(f"{read:.0f} rows read")
    if (looked := pages_read(plan)) > pages:
        found.append(f"{looked} pages read")
    return found


def bounds(name: str, wave: int) -> tuple[int, int]:
    """Rows and pages."""
    return 2 * wave, (ABSORBED if name == "absorb" else PAGES) * wave


async def guard(conn: Conn, hot: Mapping[str, Hot], wave: int) -> None:
    bad = {}
    for form in ("custom", "generic"):
        for name, one in hot.items():
            plan = await plan_of(conn, one.statement, one.values, form, *one.settings)
            if found := faults(plan, *bounds(name, wave)):
                bad[form, name] = found, plan
            if name in ("lock", "fence"):  # sorted keys outside, each row locked inside: in key order
                assert re.search(r"Nested Loop.*Sort Key: k.*LockRows.*Index Scan", plan, re.DOTALL), plan
    assert not bad, "\n\n".join(f"{case}: {found}\n{plan}" for case, (found, plan) in bad.items())


async def without_its_index(conn: Conn, one: Hot, index: str, rows: int, pages: int) -> list[str]:
    """The faults that the guard finds once `index` is dropped; the database is left as it was."""
    async with conn.transaction(force_rollback=True):
        table = index.rsplit("_", 1)[0]
        schema = "public" if table == "articles" else "instep"
        drop = f"alter table {schema}.{table} drop constraint {index}"
        await conn.execute((drop if index.endswith("_pkey") else f"drop index instep.{index}").encode())
        try:
            plan = await plan_of(conn, one.statement, one.values, "custom", *one.settings)
        except psycopg.errors.InvalidColumnReference as error:  # ON CONFLICT has nothing to stand on
            await conn.execute("deallocate examined")  # no transaction takes that back
            return [str(error)]
        return faults(plan, rows, pages)


async def test_c5_53_hot_statements_stay_on_their_indexes(scene: Scene, conn: Conn) -> None:
    """procrastinate#393, #1225, #1242: features brought sequential scans back."""
    await guard(conn, backlog(scene), WAVE)


async def test_c5_54_c5_56_dead_and_future_entries_are_not_walked_over(scene: Scene, conn: Conn) -> None:
    """graphile-worker#240, river#785: failed and future rows were scanned at each claim. Suspects are in no index of
    their own: they are looked for, and the lost are buried, among what other workers have leased, and no more."""
    await guard(conn, drained(scene), WAVE + 2 * FEW)


async def test_a_piece_of_a_sweep_reads_its_range(scene: Scene, conn: Conn) -> None:
    """A hundredth of the keys: source, stamps and outbox by their keys, and the bound by an index alone."""
    for form in ("custom", "generic"):
        for one in sweeps(scene, PIECE).values():
            plan = await plan_of(conn, one.statement, one.values, form, *one.settings)
            assert not faults(plan, PIECE + 1, PIECE), plan
        assert re.search(r"Index .*Scan using articles_pkey", plan)


async def test_a_commit_finds_its_entries_by_their_places(scene: Scene, conn: Conn) -> None:
    from instep.engine.commit import Committer

    places = "select array_agg(ctid::text) from instep.outbox_articles_embed where key_1 between %s and %s"
    middle = ROWS - WAVE - WAVE // 2
    ends = ((ROWS - 2 * WAVE + 1, middle), (middle + 1, ROWS - WAVE))
    finished, moved = [(await (await conn.execute(places, end)).fetchone())[0] for end in ends]  # type: ignore[index]
    statement = Committer(scene.embed, scene.targets[0], None)._sql["finish"]  # type: ignore[arg-type]
    for form in ("custom", "generic"):
        plan = await plan_of(conn, statement, {"finished": finished, "moved": moved}, form)
        assert not faults(plan, 2 * WAVE, PAGES * WAVE), plan
        assert plan.count("Tid Scan on outbox_articles_embed") == 2


@pytest.mark.parametrize("group", ["backlog", "drained", "sweeps"])
async def test_without_its_index_each_guard_fails(million: tuple[str, Scene], conn: Conn, group: str) -> None:
    """For few keys, so that even the worst plan ends."""
    million_scene.make_statistics(million[0], "fresh")
    few = 3
    hot = {
        "backlog": lambda scene: backlog(scene, few),
        "drained": drained,
        "sweeps": lambda scene: sweeps(scene, few),
    }[group](million[1])
    passed = []
    for name, one in hot.items():
        rows, pages = {
            "backlog": bounds(name, few), "drained": bounds(name, WAVE + 2 * FEW), "sweeps": (2 * few, 100 * few),
        }[group]  # fmt: skip
        plan = await plan_of(conn, one.statement, one.values, "custom", *one.settings)
        assert not faults(plan, max(rows, 2 * WAVE), max(pages, 4 * WAVE)), (name, plan)
        for index in one.indexes:
            if not await without_its_index(conn, one, index, max(rows, 2 * WAVE), max(pages, 4 * WAVE)):
                passed.append((name, index))
    assert passed == []


def test_no_hot_statement_is_without_a_guard(million: tuple[str, Scene]) -> None:
    """One that is new in these files needs a guard here, or a reason."""
    names = {
        name
        for file in ("outbox.sql", "commit.sql")
        for name in re.findall(
            r"^-- name: (\w+)", files("instep.engine").joinpath(file).read_text("utf-8"), re.M
        )
    }
    hot = {*backlog(million[1]), *drained(million[1]), "finish"}
    guarded = {"claim" if name.startswith("claim_") and name not in names else name for name in hot}
    assert names - guarded - UNGUARDED.keys() == set()
    assert UNGUARDED.keys() - names == set()


async def test_c5_54_claims_beside_a_million_dead_and_a_million_future_entries(
    million: tuple[str, Scene], conn: Conn, capsys: pytest.CaptureFixture[str]
) -> None:
    """graphile-worker#147. The bound is wide: what is guarded is that no claim takes what a scan takes."""
    declaration = million[1].declarations[1]
    target = next(target for target in million[1].targets if target.derivation == declaration.name)
    outbox, took = Outbox(declaration, target, SYSTEM, lease_seconds=900, max_attempts=3), []
    try:
        await conn.execute(
            "insert into instep.outbox_articles_search (key_1, target, sort_key)"
            f" select {4 * ROWS} + g, 't1', '2022-01-01' from generate_series(1, 2000) g"
        )
        for token in range(200):
            began = time.perf_counter()
            assert len(await outbox.claim(conn, 10, token)) == 10
            took.append(time.perf_counter() - began)
        assert await outbox.claim(conn, 10, 200) == []
    finally:
        await conn.execute("delete from instep.outbox_articles_search where key_1 > %s", (4 * ROWS,))
    p99 = figures.quantiles(took, n=100)[98]
    with capsys.disabled():
        print(f" claims beside a million dead and a million future: p99 {1000 * p99:.1f} ms", end="")
    assert p99 < 0.5


async def test_c5_58_many_claimers_in_a_deep_backlog(million: tuple[str, Scene], conn: Conn) -> None:
    """kestra#2600: SKIP LOCKED over a range took 37 s. Eight claims that are not committed yet: the ninth passes by
    their entries and reads no more than those."""
    claimers = [await psycopg.AsyncConnection.connect(million[0]) for _ in range(8)]
    one = backlog(million[1])["claim_newest"]
    try:
        taken: list[Any] = []
        for claimer in claimers:
            for setting in one.settings:
                await claimer.execute(f"set local {setting}".encode())
            taken += [row[0] for row in await (await claimer.execute(one.statement, one.values)).fetchall()]
        assert len(set(taken)) == len(taken) == 8 * WAVE
        for form in ("custom", "generic"):
            plan = await plan_of(conn, one.statement, one.values, form, *one.settings)
            assert not faults(plan, 9 * WAVE, 9 * PAGES * WAVE), plan
    finally:
        for claimer in claimers:
            await claimer.close()


@pytest.mark.parametrize("held", [False, True], ids=["calm", "snapshot held"])
async def test_c5_57_c5_59_claims_while_dead_rows_pile_up(
    million: tuple[str, Scene], conn: Conn, held: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """river#59, PgQue#61, awa#169. Autovacuum is off; waves are claimed and finished, and under an old snapshot nothing
    of them can go. From its cursor a claim looks at what the first one looked at; from the start, which is taken one
    time in eight for what arrived meanwhile, it would walk over all of them each time."""
    outbox = Outbox(million[1].embed, million[1].targets[0], SYSTEM, lease_seconds=900, max_attempts=3)
    hot = backlog(million[1])

    async def pages(name: str, **after: Any) -> int:
        one = hot[name]
        return pages_read(
            await plan_of(conn, one.statement, {**one.values, **after}, "custom", *one.settings)
        )

    async with await psycopg.AsyncConnection.connect(million[0]) as holder:
        if held:
            await holder.execute("set transaction isolation level repeatable read")
            await holder.execute("select count(*) from instep.target")
        first = await pages("claim_newest")
        for token in range(100, 124):
            one = hot["claim_newest"]
            rows = await (await conn.execute(one.statement, {**one.values, "token": token})).fetchall()
            await conn.execute("delete from instep.outbox_articles_embed where token = %s", (token,))
        last = outbox._entry(rows[-1])
        from_the_cursor = await pages("claim_newest_after", after=last.sort_key, key_1=last.key[0])
        from_the_start = await pages("claim_newest")
    with capsys.disabled():
        told = f"{first} first, {from_the_cursor} after 24 waves, {from_the_start} from the start"
        print(f" pages of a claim: {told}", end="")
    assert from_the_cursor < 2 * first
    assert not held or from_the_start > 2 * from_the_cursor  # else this shows nothing
