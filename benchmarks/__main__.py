"""`make bench`: `python -m benchmarks [--only NAME …] [--rounds N] [--with-pgai] [--json FILE]`.

A missed goal is said, and fails nothing; something measured wrongly (a vector that is not the server's) does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks import parts, processes, report
from benchmarks.bench import Bench

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("instep", "psycopg", "aiohttp", "numpy", "pysimdjson", "uvloop", "orjson", "onnxruntime")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure instep against its goals."
    )
    parser.add_argument(
        "--only", action="append", choices=parts.NAMES, metavar="NAME", help=", ".join(parts.NAMES)
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement; medians are shown")
    parser.add_argument(
        "--with-pgai", action="store_true", help="install pgai (6.8 GB) into benchmarks/.peers"
    )
    parser.add_argument(
        "--without-peers",
        action="store_true",
        help="without the small peers (400 MB, installed when first needed)",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of all sizes, to try it out")
    parser.add_argument("--json", type=Path, help="where the JSON goes; default: benchmarks/results/")
    return parser.parse_args()


def about(bench: Bench) -> dict[str, Any]:
    """What this was measured on."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f} before it began",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "rounds": bench.rounds,
        "scale": bench.scale,
    }


async def run(bench: Bench, names: list[str]) -> list[report.Part]:
    measured = []
    for name in names:
        bench.say(f"{name}: begins")
        began = time.monotonic()
        part: report.Part = await import_module(f"benchmarks.parts.{name}").measure(bench)
        part.seconds = time.monotonic() - began
        measured.append(part)
        for figure in part.figures:
            if figure.goal:
                bench.say(
                    f"{name}: {figure.name} {report.number(figure.value)} {figure.unit} ({figure.goal}): {figure.verdict}"
                )
    return measured


def main() -> int:
    given = arguments()
    bench = Bench(
        rounds=max(1, given.rounds),
        with_pgai=given.with_pgai,
        with_peers=not given.without_peers,
        scale=given.scale,
    )
    machine = about(bench)
    try:
        measured = asyncio.run(run(bench, given.only or list(parts.NAMES)))
    except (AssertionError, processes.Failed) as error:
        print(f"the benchmark went wrong: {error}", file=sys.stderr)
        return 1
    stem = "-".join(given.only) if given.only else "all"
    json = given.json or RESULTS / f"{stem}.json"
    print(report.write(measured, machine, json.with_suffix(".md"), json))
    missed = [
        f"{part.name}: {figure.name}"
        for part in measured
        for figure in part.figures
        if figure.verdict == "missed"
    ]
    print(f"missed: {'; '.join(missed)}" if missed else "every goal was reached")
    print(f"written: {json.with_suffix('.md')}, {json}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
