"""The benchmark's own pieces: figures that are wrong would be believed."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path

import aiohttp
import psycopg
import pytest
from psycopg import sql

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import activity, documents, model, postgres, processes, report, shared_model
from benchmarks.bench import Bench
from benchmarks.contestants import loop, noop
from benchmarks.parts import idle, offered, pipeline, pressure, queue
from benchmarks.rounds import percentile, quarters, spread


def test_quarters_keep_the_order_and_use_every_value() -> None:
    assert quarters([1, 1, 2, 2, 3, 3, 40, 4]) == [1, 2, 3, 22]
    assert quarters([5, 6, 7, 8, 9]) == [5, 6, 7.5, 9]
    with pytest.raises(ValueError, match="no quarters"):
        quarters([1, 2, 3])


def test_spread_is_in_parts_of_the_median() -> None:
    assert spread([90, 100, 120]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (report.Figure("a", 2.0, at_most=2.0), "ok"),
        (report.Figure("a", 2.01, at_most=2.0), "missed"),
        (report.Figure("a", 0.94, at_least=0.95), "missed"),
        (report.Figure("a", 0.0, at_most=0), "ok"),
        (report.Figure("a", 1.0), ""),
        (report.Figure("a", float("nan"), at_most=1), "missed"),
    ],
)
def test_a_goal_is_met_or_missed(figure: report.Figure, verdict: str) -> None:
    assert figure.verdict == verdict


def test_a_missed_goal_is_seen_in_both_files(tmp_path: Path) -> None:
    part = report.Part(
        "claim", "Claims.", [report.Figure("ratio", 3.0, "×", at_most=2.0)], rounds={"all": [1, 2]}
    )
    text = report.write([part], {"machine": "2 cores"}, tmp_path / "a.md", tmp_path / "a.json")
    assert "| ratio | 3 × | at most 2 | missed |" in text
    assert text == (tmp_path / "a.md").read_text()
    found = json.loads((tmp_path / "a.json").read_text())["parts"][0]
    assert found["figures"][0]["verdict"] == "missed"
    assert found["rounds"] == {"all": [1, 2]}


async def test_memory_of_a_whole_process_tree_is_seen() -> None:
    """Parent and child hold 60 MB each for longer than a few samples: together they are over 120."""
    hold = "import time; held = bytearray(60_000_000); time.sleep(1)"
    both = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {hold!r}]); {hold}; p.wait()"
    ended = await processes.run([sys.executable, "-c", both])
    assert 120e6 < ended.peak_bytes < 250e6


async def test_the_shared_model_works_one_request_after_another() -> None:
    """First come first served, in proportion to the texts: what the part `sharing` rests on."""
    async with shared_model.started("paced") as served, aiohttp.ClientSession() as session:

        async def ask(texts: int) -> None:
            body = {"inputs": [f"text {number}" for number in range(texts)]}
            async with session.post(f"{served.url}/embed", json=body) as answer:
                assert len(await answer.json()) == texts

        async with asyncio.TaskGroup() as group:
            for texts in (3, 1):
                group.create_task(ask(texts))
                await asyncio.sleep(0.05)
        seen = await served.seen()
    assert [one.texts for one in seen] == [3, 1]
    assert [one.worked for one in seen] == pytest.approx([0.27, 0.09], abs=0.08)
    assert seen[1].waited > 0.1


async def test_a_contestant_that_fails_is_no_result() -> None:
    with pytest.raises(processes.Failed, match="no such thing"):
        await processes.run([sys.executable, "-c", "raise SystemExit('no such thing')"])


async def test_a_wrong_vector_is_found() -> None:
    """`verify` is what the whole pipeline benchmark rests on."""
    async with postgres.server(**postgres.SETTINGS) as server, model.started() as served:
        dsn = await server.create("rows")
        await documents.create(dsn, 50)
        await loop.create(dsn)
        await processes.run(processes.python("benchmarks.contestants.loop", dsn, served.url, "20", "8"))
        assert (await served.seen())["texts"] == 50
        await documents.verify(dsn, 50, loop.FOUND)
        assert await documents.last_commit(dsn, "vectors") > 1.7e9
        for spoil, message in (
            (
                "update vectors set vector = (select v.vector from vectors v where v.id = 7) where id = 8",
                "not the server's",
            ),
            (
                "update vectors set text = (select v.text from vectors v where v.id = 9) where id = 8",
                "not theirs",
            ),
            ("delete from vectors where id = 3", "49 vectors of 49"),
        ):
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(sql.SQL(spoil))
            with pytest.raises(AssertionError, match=message):
                await documents.verify(dsn, 50, loop.FOUND)


async def test_the_pipeline_runs_end_to_end() -> None:
    """300 rows through every contestant but the peers; each round checks each vector, ours is swept afterwards."""
    part = await asyncio.wait_for(
        pipeline.measure(Bench(rounds=1, scale=300 / pipeline.ROWS, quick=True, with_peers=False)), 110
    )
    assert {name.split(",")[0] for name in part.rounds} == {"sketch", "hand-written loop", "instep"}
    figures = {figure.name: figure for figure in part.figures}
    assert figures["instep"].value > 0
    assert 20 < figures["instep, memory at its highest"].value < 1000
    assert {"instep / fastest loop", "hand-written loop / the sketch's"} <= figures.keys()


async def test_the_queue_runs_end_to_end() -> None:
    """Each round checks that nothing is left and that each row has its stamp; a missing stamp is found."""
    part = await asyncio.wait_for(
        queue.measure(Bench(rounds=1, scale=1000 / queue.ENTRIES, quick=True, with_peers=False)), 110
    )
    assert {name.split(",")[0] for name in part.rounds} == {
        "instep", "hand-written loop", "claim and removal alone", "pgbench",
    }  # fmt: skip
    told = part.rounds[f"instep, waves of {queue.WAVE}"][0]
    assert told["rate"] > 0
    assert 0 < told["wal_bytes_without_images"] < told["wal_bytes"] < 5000
    assert 1 / queue.WAVE < told["commits"] < 1
    assert part.rounds["pgbench, one row at a time, 4 clients, prepared"][0]["commits"] == pytest.approx(
        2, 0.2
    )


async def test_a_row_without_its_stamp_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim and removal alone stamp nothing: asked for stamps, they are no result."""
    async with postgres.server() as server:
        async with await psycopg.AsyncConnection.connect(
            await server.create("items"), autocommit=True
        ) as conn:
            await noop.create(conn, 600)
        bare = queue._ours(server, 600)[2].work
        assert (await bare())["entries"] == 600
        strict = functools.partial(bare.func, *bare.args[:4], True)
        with pytest.raises(AssertionError, match="0 of 600 have the right stamp"):
            await strict()


async def test_offered_load_runs_end_to_end() -> None:
    """Two seconds of warm-up and three of load for each scenario; every change is found in step after it was written."""
    part = await asyncio.wait_for(
        offered.measure(Bench(rounds=1, scale=0.01, quick=True, with_peers=False)), 115
    )
    for name in ("no-op", "vectors, HNSW"):
        told = part.rounds[name][0]
        assert 0 < told["p50"] <= told["p99"] <= told["slowest"]
        assert told["stretch"]["image_bytes"] > 0  # the checkpoint before it
    figures = {figure.name: figure for figure in part.figures}
    assert figures["of these, the user's own write without full-page images"].value > 50
    assert figures["WAL of each entry without vectors, the user's own write included"].value > 500


async def test_pressure_runs_end_to_end() -> None:
    part = await asyncio.wait_for(pressure.measure(Bench(rounds=1, scale=0.002, quick=True)), 110)
    assert len(part.rounds) == 1 + len(pressure.CASES)
    assert all(rounds[0]["drain"] > 0 and rounds[0]["absorb"] > 0 for rounds in part.rounds.values())


async def test_an_idle_worker_is_seen() -> None:
    part = await asyncio.wait_for(
        idle.measure(Bench(rounds=1, scale=0.01, quick=True, with_peers=False)), 110
    )
    for name in ("instep, a table with vectors", "instep, no-op"):
        told = part.rounds[name][0]
        assert 4 <= told["statements"] < 200  # four polls a second
        assert told["sessions"] >= 4


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, part) for part in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([3.0], 99) == 3.0


async def test_full_page_images_are_told_apart() -> None:
    """The first touch of a page after a checkpoint writes the page; the second does not."""
    async with postgres.server() as server:
        dsn = await server.create("images")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            await conn.execute(
                "create table filled as select g as id, 0 as n from generate_series(1, 20000) g"
            )
            first = await activity.begin(dsn)
            await conn.execute("update filled set n = 1 where id % 100 = 0")
            touched = await activity.since(dsn, first)
            again = await activity.look(dsn)
            await conn.execute("update filled set n = 2 where id % 100 = 0")
            second = await activity.since(dsn, again)
        assert touched.image_bytes > touched.wal_bytes * 0.8
        assert second.image_bytes < touched.image_bytes / 10
        assert 0 < second.records < 2000
