"""With the real model in the process: a run's throughput beside that of the raw model on the same texts."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

from psycopg import AsyncConnection

from benchmarks import postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import ours
from benchmarks.report import Figure, Part, Table

ROWS = 1500
GOAL = 0.95
WORDS = [
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "is",
    "for",
    "with",
    "on",
    "as",
    "by",
    "this",
    "package",
    "provides",
    "library",
    "files",
    "used",
    "tools",
    "support",
    "command",
    "line",
    "program",
    "simple",
    "fast",
    "small",
    "garden",
    "river",
    "stone",
    "letter",
    "window",
    "music",
    "history",
    "number",
    "server",
    "client",
    "network",
    "system",
    "memory",
    "language",
    "python",
    "reader",
    "writer",
    "colour",
    "picture",
    "sound",
    "game",
]


async def measure(bench: Bench) -> Part:
    rows = bench.sized(ROWS, 200)
    async with postgres.server(**postgres.SETTINGS) as server:
        await _rows(await server.create("rows"), rows)
        dsn = await server.create("ours", "rows")
        models = Path(server.data_dir) / "models"
        chunk = await ours.create(dsn, "", provider="minilm", models=models)
        raw: list[float] = []
        runs: dict[int, list[float]] = {500: [], 1000: []}
        peak = 0
        for round in range(bench.rounds):
            raw.append(await _raw(await server.create("round", "rows"), models, rows))
            for batch, found in runs.items():
                dsn = await server.create("round", "ours")
                env = ours.settings(dsn, "", embed_provider="minilm", models_dir=models, batch_size=batch)
                del env["INSTEP_EMBED_URL"], env["INSTEP_EMBED_MODEL"]
                ended = await processes.run(processes.python("benchmarks.contestants.ours", "--warm"), env)
                said = ended.json()
                if said["rows"] != rows or await _count(dsn, chunk) < rows:
                    raise AssertionError(f"{said['rows']} of {rows} rows were embedded")
                found.append(rows / (said["ended"] - said["began"]))
                peak = max(peak, ended.peak_bytes)
            bench.say(
                f"minilm: round {round + 1}: raw {raw[-1]:.0f}/s, runs {[round_[-1] for round_ in runs.values()]}"
            )
    best = max(runs.values(), key=median)
    ratios = [mine / alone for mine, alone in zip(best, raw, strict=True)]
    return Part(
        "minilm",
        f"{rows:,} texts of 5 to 120 words by all-MiniLM-L6-v2 on this machine's cores: a run (claim to commit, model "
        "loaded beforehand) and the same model given all texts at once, taking turns.",
        [
            Figure("raw model", median(raw), "texts/s"),
            Figure("a run", median(best), "texts/s"),
            Figure("a run / the raw model", median(ratios), "×", at_least=GOAL),
            Figure("memory of the worker at its highest", peak / processes.MEGABYTE, "MB"),
        ],
        [
            Table(
                "By batch",
                ("batch", "texts/s, median"),
                [[f"{batch:,}", median(found)] for batch, found in runs.items()],
            )
        ],
        rounds={"raw": raw, **{f"batch {batch}": found for batch, found in runs.items()}},
        settings=server.settings,
    )


async def _rows(dsn: str, rows: int) -> None:
    draw = random.Random(1)
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("create extension if not exists vector")
        await conn.execute("create table docs (id bigint primary key, title text, body text)")
        async with conn.cursor().copy("copy docs (id, title, body) from stdin") as copy:
            for id in range(1, rows + 1):
                length = min(120, max(5, int(draw.lognormvariate(3.2, 0.7))))
                await copy.write_row((id, f"title {id}", " ".join(draw.choices(WORDS, k=length))))
        await conn.execute("vacuum analyze docs")


async def _raw(dsn: str, models: Path, rows: int) -> float:
    said = (
        await processes.run(processes.python("benchmarks.contestants.raw_minilm", dsn, str(models)))
    ).json()
    return rows / float(said["ended"] - said["began"])


async def _count(dsn: str, chunk: str) -> int:
    async with await AsyncConnection.connect(dsn) as conn:
        row = await (await conn.execute(f"select count(distinct key_1) from {chunk}".encode())).fetchone()
        assert row is not None
        return int(row[0])
