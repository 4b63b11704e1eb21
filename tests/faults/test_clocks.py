"""Clocks (PEERS, Extra of section C): a worker's own clock and zone decide nothing. Leases are judged by the database;
a worker ten minutes off is a real process under faketime."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from database_scene import Scene, scene
from psycopg.conninfo import conninfo_to_dict

FAKETIME = shutil.which("faketime")
OFF = ("+600s", "-600s")

faketime = pytest.mark.skipif(
    FAKETIME is None,
    reason="faketime is not installed (scripts/setup.sh installs the Debian package faketime)",
)


@faketime
def test_extra_clock_faketime_sets_python_apart() -> None:
    """What the other tests stand on."""
    for off in OFF:
        command = [str(FAKETIME), "-f", off, sys.executable, "-c", "import time; print(time.time())"]
        told = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert abs(told - time.time() - int(off[:-1])) < 60


async def lease(here: Scene, seconds: int) -> None:
    """All of notes.embed is held by another worker, until so many seconds from now by the database's clock."""
    await here.rows(
        "update instep.outbox_notes_embed set token = 42, claims = 1, lease_until = now() + make_interval(secs => %s)",
        seconds,
    )


@faketime
@pytest.mark.parametrize("off", OFF)
async def test_extra_clock_leases_are_judged_by_the_database_alone(
    dsn: str, tmp_path: Path, off: str
) -> None:
    """The worker that is ten minutes ahead takes nothing whose lease has five minutes to go; the one that is ten minutes
    behind takes what ran out a second ago."""
    async with scene(dsn, tmp_path, rows=60) as here:
        assert (await here.run("notes.search")).code == 0  # finds the work of both
        await lease(here, 300)
        under = (str(FAKETIME), "-f", off)
        worker = await here.start("run", "notes.embed", "--json", under=under)
        assert await worker.ended(60) == 0, worker.err
        held = "select count(*) from instep.outbox_notes_embed where token = 42 and claims = 1"
        assert await here.rows(held) == [(60,)]
        assert await here.done() == 0
        await lease(here, -1)
        worker = await here.start("run", under=under)
        assert await worker.ended(60) == 0, worker.err
        assert await here.in_step() == []


@faketime
@pytest.mark.torture
async def test_extra_clock_workers_twenty_minutes_apart_share_the_work(dsn: str, tmp_path: Path) -> None:
    async with scene(dsn, tmp_path, rows=2000) as here:
        here.model.faults.slow = 0.002
        workers = [
            await here.start(
                "run", under=(str(FAKETIME), "-f", off), batch_size=50, lease_seconds=20, call_timeout_seconds=20
            )
            for off in OFF
        ]  # fmt: skip
        assert [await worker.ended(120) for worker in workers] == [0, 0], [w.err for w in workers]
        assert await here.in_step() == []
        assert len(here.model.texts) == len(set(here.model.texts)), "a wave was worked twice"


ZONES = {
    "Europe/Berlin": (
        "2026-10-25 02:30:00",
        "2026-03-29 02:30:00",
    ),  # an hour twice, an hour that is not there
    "America/Sao_Paulo": ("2018-02-17 23:30:00", "2018-11-04 00:00:00"),  # the same, at midnight
}


@pytest.mark.parametrize("zone", ZONES)
async def test_extra_zones_nothing_is_made_anew_for_a_sessions_zone(
    dsn: str, tmp_path: Path, zone: str
) -> None:
    """Rows written in a zone on the days when its clocks change; then the database's own zone, date, interval and float
    styles are others: no text is sent to the model again, and the absorbed order holds."""
    name = conninfo_to_dict(dsn)["dbname"]
    async with scene(dsn, tmp_path) as here:
        await here.rows(
            "create table moments (id bigint primary key, body text, at timestamptz, wall timestamp,"
            " weight float8 default 0.1::float8 + 0.2)"
        )
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as user:
            await user.execute(f"set timezone = '{zone}'; set intervalstyle = 'sql_standard'")
            for number, moment in enumerate(ZONES[zone]):
                for minutes in range(0, 120, 20):
                    await user.execute(
                        "insert into moments values (%s, %s, %s::timestamptz + make_interval(mins => %s), %s)",
                        [number * 1000 + minutes, f"{zone} {moment} {minutes}", moment, minutes, moment],
                    )
        line = await here.start(
            "tables", "add", "moments", "--text", "body", "--filters", "at,wall,weight",
            "--newest", "at", "--engine", "tantivy", "--yes",
        )  # fmt: skip
        assert await line.ended(60) == 0, (line.out, line.err)
        assert (await here.run()).code == 0
        assert await here.in_step() == []
        stamps = (
            "select 'embed', key_1, content_hash from instep.stamp_moments_embed"
            " union all select 'search', key_1, content_hash from instep.stamp_moments_search order by 1, 2"
        )
        before, texts = await here.rows(stamps), len(here.model.texts)
        assert len(before) == 24
        for setting in (
            f"timezone = '{zone}'",
            "intervalstyle = 'iso_8601'",
            "datestyle = 'SQL, DMY'",
            "extra_float_digits = -3",
        ):
            await here.rows(f"alter database {name} set {setting}")
        await here.rows("update instep.derivation set sweep_due = 'again'")
        again = await here.run()
        assert again.code == 0, again.err
        assert (await here.rows(stamps), len(here.model.texts)) == (before, texts)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as user:
            await user.execute("update moments set at = at, wall = wall where true")
        assert (await here.run()).code == 0
        assert (await here.rows(stamps), len(here.model.texts)) == (before, texts)
