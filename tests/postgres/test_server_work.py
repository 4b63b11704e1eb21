"""What a client does: add a table, run it, page through its queue, pause, replay, discard, explain, remove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from app_scene import ran
from server_scene import Served, served


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(dsn, tmp_path) as scene:
        yield scene


async def pages(client: httpx.AsyncClient, path: str, items: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages, by cursor."""
    found, cursor = [], None
    while True:
        parameters = {**query, **({"cursor": cursor} if cursor else {})}
        answer = await client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        found.append(body[items])
        cursor = body["next_cursor"]
        if cursor is None:
            return found


async def test_a_table_is_planned_confirmed_filled_and_removed(scene: Served) -> None:
    client = await scene.client("operator")
    await scene.sql("insert into notes select n, 'note ' || n from generate_series(1, 25) n")
    candidates = (await client.get("/api/v1/table-candidates")).json()["candidates"]
    by_name = {one["table"]: one for one in candidates}
    assert by_name["public.articles"]["added"] is True
    assert by_name["public.notes"]["added"] is False
    assert {"name": "body", "type": "text", "text": True} in by_name["public.notes"]["columns"]
    options = {"table": "public.notes", "text": ["body"]}
    planned = (await client.post("/api/v1/tables/plan", json=options)).json()
    assert planned["plan"]["rows"] == 25
    assert (await client.get("/api/v1/tables/notes")).status_code == 404  # a plan changes nothing
    other = {**options, "where": "id > 3", "confirm": planned["confirm"]}
    assert (await client.post("/api/v1/tables", json=other)).status_code == 409
    added = await client.post("/api/v1/tables", json={**options, "confirm": planned["confirm"]})
    assert (added.status_code, added.json()["name"], added.json()["already"]) == (201, "notes", False)
    started = await client.post(added.json()["next"])
    assert (started.status_code, started.json()["state"]) == (202, "running")
    again = await client.post(added.json()["next"])
    assert (again.status_code, again.json()["type"]) == (409, "urn:instep:problem:conflict")
    async with asyncio.timeout(60):
        while True:
            seen = (await client.get("/api/v1/derivations/notes.embed/runs")).json()
            if seen["started_here"]["state"] != "running":
                break
            await asyncio.sleep(0.1)
    assert seen["started_here"]["state"] == "ok", seen
    assert seen["runs"][0]["counters"]["indexed"] == 25
    assert await scene.sql("select count(*) from instep.notes_chunks") == [(25,)]
    series = (await client.get("/api/v1/derivations/notes.embed/series")).json()
    assert series["name"] == "notes.embed"
    assert (await client.delete("/api/v1/tables/notes")).json() == {"name": "notes", "removed": True}
    assert await scene.sql("select count(*) from pg_trigger where tgrelid = 'notes'::regclass") == [(0,)]
    assert (await client.get("/api/v1/derivations/notes.embed")).status_code == 404


async def test_a_run_that_fails_says_how_it_ended(scene: Served) -> None:
    client = await scene.client("operator")
    await scene.model.stop()
    await scene.sql("update articles set title = title || '!'")
    assert (await client.post("/api/v1/derivations/articles.embed/run")).status_code == 202
    async with asyncio.timeout(90):
        while True:
            seen = (await client.get("/api/v1/derivations/articles.embed/runs")).json()["started_here"]
            if seen["state"] != "running":
                break
            await asyncio.sleep(0.2)
    assert (seen["state"], seen["exit_code"]) == ("failed", 1)


async def test_the_queue_is_paged_by_key(scene: Served) -> None:
    await scene.sql("insert into articles (title) select 'new ' || n from generate_series(1, 95) n")
    await scene.instep.pause("articles", reason="to look at the queue")
    await ran(scene.instep, "articles")
    client = await scene.client("reader")
    path = "/api/v1/derivations/articles.embed/entries"
    found = await pages(client, path, "entries", limit=10)
    keys = [one["key"] for page in found for one in page]
    assert [len(page) for page in found] == [10] * 9 + [6]
    assert keys == sorted(set(keys))
    assert len(keys) == 96  # those that wait, and the dead letter
    assert {one["state"] for page in found for one in page} == {"waiting", "dead"}
    assert [[one["key"] for one in page] for page in await pages(client, path, "entries", state="dead")] == [
        [5]
    ]
    by_offset = (await client.get(path, params={"offset": 90, "limit": 10})).json()
    assert [one["key"] for one in by_offset["entries"]] == keys[90:]
    both = await client.get(path, params={"offset": 1, "cursor": "WyIxIiwieCJd"})
    assert both.status_code == 400


async def test_a_queue_with_a_key_of_several_columns_is_paged(scene: Served) -> None:
    await scene.sql(
        "create table pairs (a text, b uuid default gen_random_uuid(), body text, primary key (a, b))"
    )
    await scene.sql(
        "insert into pairs (a, body) select (n % 3)::text || '/''x', 'word' from generate_series(1, 20) n"
    )
    await scene.instep.pause(reason="to look at the queue")
    from app_scene import added

    await added(scene.instep, "pairs", "body")
    await ran(scene.instep, "pairs")
    client = await scene.client("reader")
    found = await pages(client, "/api/v1/derivations/pairs.embed/entries", "entries", limit=3)
    keys = [tuple(one["key"]) for page in found for one in page]
    assert len(keys) == len(set(keys)) == 20
    key = f'["{keys[0][0]}","{keys[0][1]}"]'
    explained = await client.get(f"/api/v1/explain/pairs.embed/{httpx.QueryParams({'k': key})['k']}")
    assert explained.json()["entry"]["state"] == "waiting", explained.text


async def test_dead_letters_are_listed_shown_replayed_and_discarded(scene: Served) -> None:
    await scene.sql("insert into articles (title) select 'poison ' || n from generate_series(1, 12) n")
    await ran(scene.instep, "articles")
    reader, member, operator = [await scene.client(role) for role in ("reader", "member", "operator")]
    (kind,) = (await reader.get("/api/v1/dead")).json()["kinds"]
    assert (kind["name"], kind["count"]) == ("articles.embed", 13)
    found = await pages(reader, "/api/v1/dead/articles.embed", "letters", kind=kind["kind"], limit=5)
    assert [len(page) for page in found] == [5, 5, 3]
    letters = [one for page in found for one in page]
    assert len({one["key"] for one in letters}) == 13
    times = [one["failed_at"] for one in letters]
    assert times == sorted(times, reverse=True)
    shown = (await reader.get("/api/v1/dead/articles/5")).json()
    assert "poison to the model" in shown["text"]
    assert shown["letters"][0]["attempts"] >= 1
    discarded = await operator.post(
        "/api/v1/dead/articles.embed/discard", json={"key": "5", "reason": "<b>on purpose</b>"}
    )
    assert discarded.json() == {"discarded": 1}
    assert await scene.sql("select discard_reason from instep.outbox_articles_embed where key_1 = 5") == [
        ("<b>on purpose</b>",)
    ]
    scene.model.faults.refuse = {}
    replayed = await member.post("/api/v1/dead/articles.embed/replay", json={"kind": kind["kind"]})
    assert replayed.json() == {"replayed": 12}
    await ran(scene.instep, "articles")
    assert (await reader.get("/api/v1/dead")).json()["kinds"] == []


async def test_a_pause_holds_work_and_is_shown_everywhere(scene: Served) -> None:
    client = await scene.client("operator")
    made = await client.post(
        "/api/v1/pauses/articles", json={"reason": "the model is changed", "minutes": 60}
    )
    assert made.status_code == 201
    assert made.json()["until"] > made.json()["since"]
    await scene.sql("update articles set title = title || '!' where id < 5")
    await ran(scene.instep, "articles")
    figures = (await client.get("/api/v1/derivations/articles.embed")).json()
    assert (figures["state"], figures["depth"]) == ("paused", 4)
    assert figures["paused"]["reason"] == "the model is changed"
    assert (await client.get("/api/v1/pauses")).json()["pauses"] == [made.json()]
    wider = await client.post("/api/v1/pauses", json={"reason": "all of it"})
    assert wider.json()["name"] is None
    assert (await client.delete("/api/v1/pauses/articles.embed")).status_code == 400  # a wider one holds it
    assert len((await client.delete("/api/v1/pauses")).json()["lifted"]) == 2
    await ran(scene.instep, "articles")
    assert (await client.get("/api/v1/derivations/articles.embed")).json()["depth"] == 0


async def test_explain_and_plan_say_what_the_command_line_says(scene: Served) -> None:
    client = await scene.client("reader")
    explained = (await client.get("/api/v1/explain/articles/5")).json()
    printed = (await scene.instep.explain("articles", "5")).as_dict()
    for one in (explained["entry"], printed["entry"], *explained["entries"], *printed["entries"]):
        assert one.pop("waited_seconds") >= 0  # it waits on between the two
    assert explained == printed
    assert explained["entry"]["state"] == "dead"
    plan = (await client.get("/api/v1/derivations/articles.embed/plan")).json()
    assert plan["rows"] == 5


async def test_metrics_can_be_scraped(scene: Served) -> None:
    client = await scene.client("reader")
    fresh = await client.get("/api/v1/derivations")  # samples what is new
    assert fresh.status_code == 200
    async with asyncio.timeout(10):
        while 'instep_dead{derivation="articles.embed"} 1.0' not in (
            text := (await client.get("/metrics")).text
        ):
            await client.get("/api/v1/derivations")
            await asyncio.sleep(0.2)
    assert 'instep_failed_24h{derivation="articles.embed"} 1.0' in text
    assert 'instep_state{derivation="articles.search",state="in step"} 1.0' in text
    assert "# HELP instep_waiting entries that wait" in text
    health = (await client.get("/api/v1/health")).json()
    queue = {one["name"]: one for one in health["queues"]}["articles.embed"]
    assert queue == {
        "name": "articles.embed", "state": "in step", "pending": 0, "running": 0, "failed_24h": 1,
        "oldest_running_seconds": None, "stuck_after_seconds": 900,
    }  # fmt: skip
