"""What a run leaves for node_exporter's textfile collector: a worker that runs once has no port to scrape.

A hung run never writes its finish stamp, so one alert on its age catches both a hang and a dead timer.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from instep.database.statements import Statements
from instep.engine.ports import Conn, RunReport

_SQL = Statements("instep.upkeep", "textfile.sql")
_STAMPS = ("start", "finish", "success", "seen")

Stamps = Mapping[str, float]
"""Seconds since 1970 of the last start, finish, success and sign of life; absent: never."""


async def read_stamps(conn: Conn, derivation: str) -> Stamps:
    row = await (await conn.execute(_SQL["stamps"], {"derivation": derivation})).fetchone()
    return {name: value for name, value in zip(_STAMPS, row or (), strict=False) if value is not None}


def write(directory: Path, stamps: Stamps, report: RunReport) -> Path:
    """Write `instep_<derivation>.prom` by an atomic rename; its path. Units are in the names."""
    directory.mkdir(parents=True, exist_ok=True)
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(name, text, ["derivation"], registry=registry).labels(report.name).set(value)

    for name, value in stamps.items():
        gauge(f"instep_run_last_{name}_timestamp_seconds", f"when a run last had its {name}", value)
    gauge("instep_run_duration_seconds", "how long the last run took", report.seconds)
    gauge("instep_waiting_entries", "entries that waited when the run was last seen", report.pending)
    gauge("instep_run_exit_code", "of the last run", report.exit_code)
    for name, value in report.counters.as_dict().items():
        gauge(f"instep_run_{name}", f"{name}, in the last run", value)
    path = directory / f"instep_{report.name.replace('.', '_')}.prom"
    write_to_textfile(str(path), registry)
    return path
