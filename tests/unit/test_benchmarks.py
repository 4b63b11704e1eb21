"""The benchmark's own pieces: figures that are wrong would be believed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import documents, model, postgres, processes, report
from benchmarks.bench import Bench
from benchmarks.contestants import loop
from benchmarks.parts import pipeline
from benchmarks.rounds import quarters, spread


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
