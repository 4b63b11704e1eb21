"""instep's own worker on `docs.embed`, as `instep run docs.embed` does it:
`ours [--warm | --follow [--no-index]] [--unlimited]`.

Settings come by the environment. `--warm` loads the model before the clock starts; `--follow` stays, as
`instep worker --follow docs.embed` does, until SIGTERM, and builds its vector index. `--unlimited` does without the
adaptive limit, for comparison.

It prints when the run began and when its last wave was committed, and the run's counters. No contestant builds a
vector index within its time: ours would do so after its last commit, and is told not to (20,000 rows take seconds).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.contestants.unlimited import unlimit
from instep.app import Instep
from instep.catalogues.tables.declare import declare
from instep.catalogues.tables.model import EmbeddingModel
from instep.catalogues.tables.options import TableOptions
from instep.catalogues.tables.tables import add
from instep.chunks import vector_index
from instep.engine.declared import read_declarations, read_source, read_targets
from instep.engine.sweep import Sweeper
from instep.inference.providers import create_embedder
from instep.settings import Settings
from instep.worker import Terminated, supervise

DERIVATION = "docs.embed"


def settings(dsn: str, url: str, **more: Any) -> dict[str, str]:
    """The environment of a worker on `dsn` with the model server at `url`. It sweeps only when told."""
    chosen = {
        "database_url": dsn,
        "embed_provider": "tei",
        "embed_url": url,
        "embed_model": "instant",
        "sweep_every_seconds": 6 * 3600,
        **more,
    }
    return {f"INSTEP_{name.upper()}": str(value) for name, value in chosen.items()}


async def create(
    dsn: str, url: str, *, provider: str = "tei", models: Path | None = None, swept: bool = True
) -> str:
    """Add the table `docs` and, where `swept`, find its work: every row waits in the outbox, nothing is due.
    Gives the chunk table's name."""
    loaded = Settings.load(environ={"INSTEP_DATABASE_URL": dsn})
    embedder = create_embedder(provider, url=url, model="instant" if url else "", cache_dir=models)
    async with Instep.open(loaded) as app, app.database.connection() as conn:
        declared = await declare(
            conn, TableOptions("docs", ("title", "body")), EmbeddingModel(embedder, provider)
        )
        await add(conn, declared)
        source = await read_source(conn, "docs")
        for declaration in await read_declarations(conn, source):
            targets = await read_targets(conn, declaration.name)
            if swept:
                async for _ in Sweeper(declaration, targets).pieces(conn):
                    pass
        await conn.execute("vacuum analyze")
        target = (await read_targets(conn, DERIVATION))[0]
    await embedder.close()
    return f"instep.chunk_docs_embed_{target.id}"


def found(chunk: str) -> str:
    """What `documents.verify` takes. No document of the benchmark has more than one chunk."""
    return f"select key_1 as id, text as sent, vector from {chunk}"


class _Watch:
    """An observer that notes when things were committed."""

    def __init__(self) -> None:
        self.committed = 0.0
        self.waves: list[tuple[int, float]] = []

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "committed":
            self.committed = time.time()
        elif name == "wave":
            self.waves.append((fields["size"], fields["seconds"]))
        elif name in ("failed", "halved", "abandoned", "outage"):
            print(name, dict(fields), file=sys.stderr)


async def follow(index: bool) -> None:
    if not index:
        vector_index.FEWEST_ROWS = sys.maxsize
    async with Instep.open(Settings.load()) as app:
        with suppress(Terminated):
            await supervise(
                lambda stop: app.run([DERIVATION], observer=_Watch(), stop=stop, follow=True), print
            )


async def main(warm: bool) -> None:
    vector_index.FEWEST_ROWS = sys.maxsize
    watch = _Watch()
    async with Instep.open(Settings.load()) as app:
        if warm:
            for derivation in (await app.workshop("docs")).derivations[:1]:
                async with app.database.connection() as conn:
                    await derivation.probe((await read_targets(conn, DERIVATION))[0])
        cpu, began = time.process_time(), time.time()
        reports = await supervise(lambda stop: app.run([DERIVATION], observer=watch, stop=stop), print)
        cpu = time.process_time() - cpu
    report = reports[0]
    print(
        orjson.dumps(
            {
                "rows": report.counters.indexed,
                "began": began,
                "ended": watch.committed,
                "cpu": cpu,
                "counters": report.counters.as_dict(),
                "outage": report.outage,
                "configuration": report.configuration,
                "waves": len(watch.waves),
            }
        ).decode()
    )


if __name__ == "__main__":
    if "--unlimited" in sys.argv:
        unlimit()
    uvloop.run(follow("--no-index" not in sys.argv) if "--follow" in sys.argv else main("--warm" in sys.argv))
