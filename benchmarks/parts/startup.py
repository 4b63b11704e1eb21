"""How long a person waits for `instep --help`."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.report import Figure, Part

GOAL_SECONDS = 0.4


async def measure(bench: Bench) -> Part:
    command = [str(Path(sys.executable).with_name("instep")), "--help"]
    await processes.run(command)  # the first one reads the files from disk and writes compiled modules
    seconds = [(await processes.run(command)).seconds for _ in range(max(5, 3 * bench.rounds))]
    return Part(
        "startup",
        f"`instep --help` as a process of its own, wall time, median of {len(seconds)} after one to warm up.",
        [
            Figure("instep --help", median(seconds), "s", at_most=GOAL_SECONDS),
            Figure("slowest", max(seconds), "s"),
        ],
        rounds={"seconds": seconds},
    )
