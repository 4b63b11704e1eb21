"""What a run leaves for node_exporter's textfile collector: a worker that runs once has no port to scrape.

A hung run never writes its finish stamp, so one alert on its age catches both a hang and a dead timer.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from instep.database.statements import Statements
from instep.engine.ports import Conn

_SQL = Statements("instep.upkeep", "textfile.sql")
_STAMPS = ("start", "finish", "success", "seen")


@dataclass(frozen=True, slots=True)
class Seen:
    """The last run of a derivation. `stamps`: seconds since 1970 of the last start, finish, success and sign of life
    of any run; absent: never."""

    derivation: str
    seconds: float
    counters: Mapping[str, int]
    stamps: Mapping[str, float]


async def read(conn: Conn, derivation: str) -> Seen | None:
    """None where it never ran."""
    row = await (await conn.execute(_SQL["last_run"], {"derivation": derivation})).fetchone()
    if row is None:
        return None
    counters, seconds, *stamps = row
    known = {name: value for name, value in zip(_STAMPS, stamps, strict=True) if value is not None}
    return Seen(derivation, seconds, counters, known)


def write(directory: Path, seen: Seen) -> Path:
    """Write `instep_<derivation>.prom` by an atomic rename; its path. Units are in the names."""
    directory.mkdir(parents=True, exist_ok=True)
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(name, text, ["derivation"], registry=registry).labels(seen.derivation).set(value)

    for name, value in seen.stamps.items():
        gauge(f"instep_run_last_{name}_timestamp_seconds", f"when a run last had its {name}", value)
    gauge("instep_run_duration_seconds", "how long the last run took, or has taken", seen.seconds)
    for name, value in seen.counters.items():
        gauge(f"instep_run_{name}", f"{name}, in the last run", value)
    path = directory / f"instep_{seen.derivation.replace('.', '_')}.prom"
    write_to_textfile(str(path), registry)
    return path
