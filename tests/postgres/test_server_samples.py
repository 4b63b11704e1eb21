"""Samples and points: one sample for all, each piece of work counted once, and a bound on what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from app_scene import added, opened, ran

from instep.app import Instep
from instep.testing.model_server import ModelServer
from instep.upkeep import queues, sampling


@pytest.fixture
async def app(dsn: str, tmp_path: Path) -> AsyncIterator[Instep]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create table articles (id bigint primary key, body text)")
    model = ModelServer("tei")
    await model.start()
    try:
        async with opened(dsn, model, tmp_path, batch_size=20) as app:
            await added(app, "articles", "body", engine="postgres")
            yield app
    finally:
        await model.stop()


async def sql(app: Instep, statement: str) -> list[tuple[Any, ...]]:
    async with app.database.connection() as conn:
        cursor = await conn.execute(statement)
        return await cursor.fetchall() if cursor.description else []


async def sampled(app: Instep, every: float = 0.0) -> bool:
    async with app.database.connection() as conn:
        return await sampling.sample(conn, every=every)


async def worked(app: Instep, name: str = "articles.embed") -> int:
    async with app.database.connection() as conn:
        points = await sampling.series(conn, name, 90 * 86_400, 100_000)
    return sum(point["worked"] for point in points)


async def test_the_points_of_a_drain_sum_to_what_was_worked(app: Instep) -> None:
    """137 rows, sampled while they are worked, by several at once."""
    await sql(app, "insert into articles select n, 'word ' || n from generate_series(1, 137) n")
    await sampled(app)
    running = asyncio.create_task(ran(app, "articles"))
    while not running.done():
        await asyncio.gather(sampled(app), sampled(app), sampled(app))
        await asyncio.sleep(0.02)
    await running
    await sampled(app)
    await sampled(app)
    assert await worked(app) == await worked(app, "articles.search") == 137
    async with app.database.connection() as conn:
        points = await sampling.series(conn, "articles.embed", 3600, 240)
    assert max(point["depth"] for point in points) == 137
    await sql(app, "delete from articles where id <= 7")
    await ran(app, "articles")
    await sampled(app)
    assert await worked(app) == 144


async def test_several_processes_make_one_sample(app: Instep) -> None:
    made = await asyncio.gather(*(sampled(app, every=15) for _ in range(8)))
    assert made.count(True) == 1
    assert await sql(app, "select count(*) from instep.point where derivation = 'articles.embed'") == [(1,)]
    assert await sampled(app, every=15) is False
    await sql(app, "update instep.sampling set at = at - interval '15 s'")
    assert await sampled(app, every=15) is True


async def test_the_work_of_a_run_that_died_is_counted_once(app: Instep) -> None:
    await sql(
        app, """insert into instep.run (derivation, counters) values ('articles.embed', '{"indexed": 5}')"""
    )
    await sampled(app)
    await sampled(app)
    assert await worked(app) == 5
    await sql(app, "update instep.run set seen_at = now() - interval '2 days'")
    await sampled(app)
    assert await sql(app, "select closed, sampled from instep.run") == [(True, 5)]
    assert await worked(app) == 5


async def test_thirty_days_stay_within_a_bound(app: Instep) -> None:
    """A sample each 15 s for thirty days would be 172,800 points; work is not lost by thinning them. Simulated in steps of
    fifteen minutes, each with the 60 samples that come in it."""
    (status,) = await app.status(["articles.embed"])
    end = datetime.now(UTC)
    at = end - timedelta(days=30)
    done = most = 0
    async with app.database.connection() as conn:
        while at <= end:
            await conn.execute(
                "insert into instep.point (derivation, span, at, depth, worked, dead, oldest_wait) "
                "select 'articles.embed', 15, %(at)s + n * interval '15 s', n, n, 0, 0 from generate_series(1, 59) n",
                {"at": at},
            )
            done += sum(range(60))
            at += timedelta(minutes=15)
            await sampling.keep(conn, [replace(status, waiting=1)], at)
            cursor = await conn.execute("select count(*), sum(worked) from instep.point")
            count, total = (await cursor.fetchall())[0]
            most = max(most, count)
            assert total == done
    assert most <= sampling.MOST_POINTS, most
    spans = dict(await sql(app, "select span, count(*) from instep.point group by span"))
    assert spans.keys() == set(sampling.SPANS)
    assert 24 * 27 <= spans[3600] <= 24 * 30
    async with app.database.connection() as conn:
        points = await sampling.series(conn, "articles.embed", 31 * 86_400, 240)
    assert len(points) <= 242
    assert sum(point["worked"] for point in points) == done


async def test_what_is_older_than_ninety_days_is_dropped(app: Instep) -> None:
    await sql(
        app,
        "insert into instep.point values ('articles.embed', 3600, now() - interval '91 days', 1, 1, 0, 0)",
    )
    await sampled(app)
    assert await sql(app, "select count(*) from instep.point where span = 3600") == [(0,)]


async def test_a_sample_says_what_status_says_and_as_of_when(app: Instep) -> None:
    await sql(app, "insert into articles select n, 'word ' || n from generate_series(1, 30) n")
    await ran(app, "articles")
    await sql(app, "insert into articles select n, 'word ' || n from generate_series(31, 40) n")
    await sampled(app)
    async with app.database.connection() as conn:
        found = {one.name: one.as_dict() for one in await sampling.samples(conn)}
    status = {one.name: one.as_dict() for one in await app.status()}
    assert found.keys() == status.keys() == {"articles.embed", "articles.search"}
    for name, one in found.items():
        assert {key: one[key] for key in ("waiting", "dead", "unabsorbed", "coverage", "state")} == {
            key: status[name][key] for key in ("waiting", "dead", "unabsorbed", "coverage", "state")
        }
        assert one["depth"] == one["unabsorbed"] == 10
        assert one["worked_last_hour"] == 30
        assert datetime.fromisoformat(one["as_of"]).tzinfo is not None


async def test_coverage_that_is_dear_is_not_counted_each_time(
    app: Instep, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0
    count = sampling.status.coverage

    async def counting(*arguments: Any) -> float | None:
        nonlocal counted
        counted += 1
        return await count(*arguments)

    monkeypatch.setattr(sampling.status, "coverage", counting)
    monkeypatch.setattr(sampling, "CHEAP_SECONDS", 0.0)
    await sampled(app)
    await sampled(app)  # the first count stands in no sample yet: this one's does
    before = counted
    await sampled(app)
    assert counted == before
    await sql(app, "update instep.sample set coverage_at = coverage_at - interval '1 hour'")
    await sampled(app)
    assert counted == before + 2


async def test_a_table_that_is_removed_takes_its_samples_along(app: Instep) -> None:
    from instep.catalogues.tables.workshop import remove_table

    await sampled(app)
    await remove_table(app, "articles")
    assert await sql(
        app, "select (select count(*) from instep.sample), (select count(*) from instep.point)"
    ) == [(0, 0)]
    assert await sampled(app)


async def test_a_table_that_is_gone_is_sampled_as_misconfigured(app: Instep) -> None:
    await sampled(app)
    await sql(app, "drop table articles")
    assert await sampled(app)
    async with app.database.connection() as conn:
        assert {one.status["state"] for one in await sampling.samples(conn)} == {"misconfigured"}
        text = queues.exposition(await queues.queues(conn)).decode()
    assert 'instep_state{derivation="articles.embed",state="misconfigured"} 1.0' in text
    assert 'instep_depth{derivation="articles.embed"}' in text
