"""Figures as they change: seen within two seconds of a plain INSERT, again after a stream that broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from server_scene import Served, served

from instep.database.statements import Statements
from instep.database.transactions import transaction
from instep.engine import declared, glance
from instep.engine.declaration import fragments
from instep.upkeep import sampling


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(dsn, tmp_path) as scene:
        yield scene


async def told(client: httpx.AsyncClient, path: str = "/api/v1/events") -> AsyncIterator[dict[str, Any]]:
    """The figures of each event, by name."""
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                yield {one["name"]: one for one in orjson.loads(line[5:])["derivations"]}


async def until(events: AsyncIterator[dict[str, Any]], name: str, **figures: Any) -> float:
    """Seconds until an event says so."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(15):
        async for event in events:
            if name in event and figures.items() <= event[name].items():
                return asyncio.get_running_loop().time() - began
    raise AssertionError("the stream ended")


async def test_an_insert_is_seen_within_two_seconds(scene: Served) -> None:
    client = await scene.client("reader")
    events = told(client)
    first = await anext(events)
    assert first["articles.embed"]["depth"] == 0
    await scene.sql("insert into articles (title) select 'new ' || n from generate_series(1, 3) n")
    assert await until(events, "articles.embed", depth=3, state="catching up") < 2.5
    await scene.instep.pause("articles", reason="load")
    assert await until(events, "articles.embed", state="paused") < 2.5


async def test_a_stream_that_was_cut_is_taken_up_again(scene: Served) -> None:
    client = await scene.client("reader")
    events = told(client)
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    await scene.sql("insert into articles (title) values ('new')")
    again = told(await scene.client("reader", **{"last-event-id": "1"}))
    assert await until(again, "articles.embed", depth=1) < 5
    async with asyncio.timeout(10):
        while scene.app.state.opened.keeper.listeners > 1:  # the first is let go
            await asyncio.sleep(0.05)


async def test_a_listener_hears_of_its_own_tables_alone(scene: Served) -> None:
    events = told(await scene.client("reader", "articles"))
    assert (await anext(events)).keys() == {"articles.embed", "articles.search"}
    one = told(await scene.client("reader"), "/api/v1/events?name=secrets.embed")
    assert (await anext(one)).keys() == {"secrets.embed"}


async def test_a_table_that_was_just_added_is_told(scene: Served) -> None:
    events = told(await scene.client("reader"))
    await anext(events)
    await scene.add("notes", "body")
    assert await until(events, "notes.embed") < 10
    from instep.catalogues.tables.workshop import remove_table

    await remove_table(scene.instep, "notes")
    assert await until(events, "notes.embed", state="removed") < 10


async def test_a_long_queue_is_glanced_at_up_to_a_bound(
    scene: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.instep.database.connection() as conn:
        assert await sampling.sample(conn, every=0)
    monkeypatch.setattr(glance, "BOUND", 5)
    async with scene.instep.database.connection() as conn:
        await conn.execute("insert into articles (title) select 'new ' || n from generate_series(1, 5) n")
        seen = (await glance.glance(conn))["articles.embed"]
        assert (seen.depth, seen.exact) == (5, True)
        await conn.execute("insert into articles (title) select 'new ' || n from generate_series(1, 50) n")
        seen = (await glance.glance(conn))["articles.embed"]
        assert (seen.depth, seen.exact) == (6, False)
    client = await scene.client("reader")
    figures = (await client.get("/api/v1/derivations/articles.embed")).json()
    assert figures["depth"] == 0  # as of the last sample: it says so
    assert figures["as_of"]


async def test_a_glance_reads_no_million_entries_for_the_dead_ones(scene: Served) -> None:
    """Without statistics, as after a fill: the few dead letters are found by their index."""
    await scene.sql(
        "insert into instep.outbox_articles_embed (key_1, target, sort_key) "
        "select n, (select target from instep.target where derivation = 'articles.embed'), now() "
        "from generate_series(100, 60000) n"
    )
    plans = []
    async with scene.instep.database.connection() as conn:
        declaration = await declared.read_declaration(conn, "articles.embed")
        text = Statements("instep.engine", "glance.sql", **fragments(declaration))["glance"].decode()
        text = text.replace("%(bit)s", "$1").replace("%(bound)s", "$2")
        for settings in ((), glance.PLAIN):  # a plan that is kept does not notice them: each time anew
            await conn.execute(f"prepare seen (integer, integer) as {text}".encode())
            async with transaction(conn, "plan_cache_mode = force_generic_plan", *settings):
                rows = await (await conn.execute(b"explain execute seen (1, 20001)")).fetchall()
                plans.append("\n".join(row[0] for row in rows))
            await conn.execute(b"deallocate seen")
    assert "outbox_articles_embed_dead" not in plans[0], (
        "without our settings it goes wrong: else this shows nothing"
    )
    assert "outbox_articles_embed_dead" in plans[1], plans[1]
    client = await scene.client("reader")
    (kind,) = (await client.get("/api/v1/dead")).json()["kinds"]
    assert kind["count"] == 1
    figures = (await client.get("/api/v1/derivations/articles.embed")).json()
    assert figures["dead"] == 1
