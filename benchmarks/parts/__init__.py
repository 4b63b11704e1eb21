"""The parts of the benchmark by name: each module has `async def measure(bench) -> Part`."""

from __future__ import annotations

NAMES = (
    "pipeline", "queue", "offered", "pressure", "idle", "minilm", "claim", "capture", "follow", "startup", "sharing",
)  # fmt: skip
