"""A plan says beforehand what is then made: counts of real chunks, measured speed, and what leaves the machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from embedding_scene import CountingModel
from tables_scene import ARTICLES, catalogue, declared, model

from instep.catalogues.tables.plan import MEASURED_SECONDS, plan
from instep.chunks.splitting import splitter_of
from instep.errors import Outage, Refused
from instep.text.compose import entity_text


async def rows(conn, count, body="'a body ' || repeat('with words ', 10)"):
    await conn.execute(ARTICLES)
    await conn.execute(
        f"insert into articles (title, body, published) select 'title ' || g, {body}, g %% 4 > 0 from generate_series(1, %s) g",
        (count,),
    )
    await conn.execute("analyze articles")


async def test_the_plan_of_a_table(conn):
    await rows(conn, 2000)
    before = await catalogue(conn)
    found = await plan(conn, await declared(conn, where="published"), model())
    assert (found.rows, found.eligible, found.rows_are_counted, found.sampled) == (2000, 1500, True, 500)
    assert found.chunks == 1500
    assert dict(found.characters)["body"] == 117
    assert found.texts_per_second > 0
    assert found.triggers == 5
    lines = found.lines()
    assert lines[0] == "articles: public.articles, 2,000 rows, key id (bigint)"
    assert lines[1] == "  of these   1,500 meet the condition"
    assert lines[2].startswith("  text       title (average ")
    assert "  target     counting-chunked-1000c-v1, 8 dimensions, runs on this machine" in lines
    assert lines[4].startswith("  will make  about 1,500 chunks, 4")
    assert "texts/s measured just now), searchable while it fills" in lines[5]
    assert lines[-1].startswith("  installs   5 triggers on public.articles")
    assert not any("leaves" in line for line in lines)
    assert set(found.as_dict()) >= {"rows", "chunks", "tokens", "seconds", "bytes"}
    assert await catalogue(conn) == before


async def test_a_large_table_is_sampled_by_pages(conn):
    """The estimate comes from rows of the whole table: the texts get longer towards its end."""
    await rows(conn, 30_000, "repeat('word ', g / 100)")
    found = await plan(conn, await declared(conn, splitter="500c"), model())
    every_20th = await (
        await conn.execute("select title, body from articles where id % 20 = 0 order by id")
    ).fetchall()
    splitter = splitter_of("500c", None)
    exact = 20 * sum(len(splitter.split(entity_text(texts))) for texts in every_20th)
    assert 0.75 < found.chunks / exact < 1.3


async def test_an_empty_table(conn):
    await conn.execute(ARTICLES)
    found = await plan(conn, await declared(conn), model())
    assert (found.rows, found.chunks, found.seconds) == (0, 0, None)
    assert any("no row has a text yet" in line for line in found.lines())


async def test_text_that_leaves_the_machine_is_said(conn):
    await rows(conn, 3)
    away = replace(model(), leaves_machine=True)
    found = await plan(conn, await declared(conn), away, runs_at="https://models.example")
    assert "  warning    the text of these rows leaves this machine" in found.lines()
    assert any("runs at https://models.example" in line for line in found.lines())


class Slow(CountingModel):
    async def embed(self, texts, *, urgent=False):
        await asyncio.sleep(0.05 * len(texts))
        return await super().embed(texts)


async def test_measuring_is_bounded(conn):
    """By the clock, whatever the model's speed: a plan is asked for before a person decides."""
    await rows(conn, 3000)
    slow = replace(model(), embedder=Slow())
    began = asyncio.get_running_loop().time()
    found = await plan(conn, await declared(conn), slow)
    assert asyncio.get_running_loop().time() - began < 2 * MEASURED_SECONDS + 4
    assert 10 < found.texts_per_second <= 20


class Out(CountingModel):
    async def embed(self, texts, *, urgent=False):
        raise Outage("connection refused")


async def test_a_model_that_is_out_leaves_the_time_open(conn):
    await rows(conn, 3)
    found = await plan(conn, await declared(conn), replace(model(), embedder=Out()))
    assert found.seconds is None
    assert "  time       not known" in found.lines()
    assert any("connection refused" in line for line in found.lines())


async def test_a_condition_that_fails_on_a_row_is_refused(conn):
    await rows(conn, 10)
    with pytest.raises(Refused, match=r"fails on a row of .*: division by zero"):
        await plan(conn, await declared(conn, where="1 / (length(title) - 7) > 0"), model())
