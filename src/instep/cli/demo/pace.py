"""How many rows this machine derives in the time that a demo may take."""

from __future__ import annotations

import asyncio

from instep.cli.demo import records
from instep.clock import SYSTEM
from instep.inference.providers import create_embedder
from instep.settings import Settings

DRAIN_SECONDS = (
    90.0  # of a demo that ends within three minutes: half, for a machine that slows down meanwhile
)
FEWEST, MOST, STEP = 300, 5000, 100
SAMPLE_ROWS, BATCH = 96, 32
CHUNKS_OF_A_ROW = 1.12
REMEMBERED = "demo-rows"  # in the demo's directory: the same rows again, so that only changes are worked


def rows_for(settings: Settings) -> tuple[int, str]:
    """How many rows to load, and why: as last time, or by the speed of the model here, measured for some seconds."""
    file = settings.data_dir / REMEMBERED
    if file.exists():
        return int(file.read_text()), "as last time"
    speed = asyncio.run(_texts_per_second(settings))
    rows = int(speed * DRAIN_SECONDS / CHUNKS_OF_A_ROW) // STEP * STEP
    rows = min(MOST, max(FEWEST, rows))
    file.write_text(str(rows))
    return rows, f"as many as take about two minutes at {speed:,.0f} texts/s, measured just now"


async def _texts_per_second(settings: Settings) -> float:
    embedder = create_embedder("minilm", cache_dir=settings.models_path)
    texts = [f"{package.name}\n\n{package.description}" for package in records.sample(SAMPLE_ROWS).packages]
    try:
        await embedder.probe()  # loads the model; the first time it is put together, which takes seconds
        began = SYSTEM.monotonic()
        for at in range(0, SAMPLE_ROWS, BATCH):
            await embedder.embed(texts[at : at + BATCH])
        return SAMPLE_ROWS / max(SYSTEM.monotonic() - began, 1e-6)
    finally:
        await embedder.close()
