"""Queries and bulk work on one model server: how long a query waits during a drain, and what that costs the drain.

Two servers that behave as TEI does (`benchmarks.shared_model`): one that takes the reference's 0.09 s for a query and
works in proportion for more, and a real all-MiniLM-L6-v2. On each: queries alone, bulk work alone, both at once; the
bulk work once with the adaptive limit and once without it (eight full requests at once), taking turns. Then the model
inside the process, where each process has its own, and a server that answers at once, where the limit must not be felt.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import model, postgres, processes, shared_model
from benchmarks.bench import Bench
from benchmarks.contestants import ours
from benchmarks.contestants.unlimited import FixedLimit
from benchmarks.parts import minilm
from benchmarks.report import Figure, Part, Table
from instep.database.interactive import Interactive
from instep.database.pool import Database
from instep.inference import adaptive
from instep.inference.ports import Embedder
from instep.inference.providers import create_embedder
from instep.settings import Settings

SECONDS, WARM_SECONDS = 40.0, 10.0  # of each measurement, after the drain has found its pace
START_SECONDS = 90.0  # for a worker to start, on a busy machine
EVERY = 0.5  # seconds between queries, on average
IDLE_QUERIES = 30
ROWS = 6000
FAST_TEXTS = 20_000
REFERENCE_IDLE, REFERENCE_DRAIN = 0.09, (8.0, 10.0)
GOAL_PACED, GOAL_ALONE, GOAL_SHARED, GOAL_IN_PROCESS, GOAL_FAST = 0.3, 0.95, 0.70, 4.0, 0.95


@dataclass(slots=True)
class Measured:
    """One server, over all rounds."""

    idle: list[float] = field(default_factory=list)  # seconds of each query
    queries: dict[str, list[list[float]]] = field(default_factory=lambda: {"adaptive": [], "unlimited": []})
    alone: dict[str, list[float]] = field(default_factory=lambda: {"adaptive": [], "unlimited": []})
    shared: dict[str, list[float]] = field(default_factory=lambda: {"adaptive": [], "unlimited": []})
    smallest: list[float] = field(default_factory=list)  # seconds that the server worked on one
    sizes: Counter[int] = field(
        default_factory=Counter
    )  # of the adaptive drain's requests while queries came


async def measure(bench: Bench) -> Part:
    rows = bench.sized(ROWS, 300)
    async with postgres.server(**postgres.SETTINGS) as server:
        await minilm._rows(await server.create("rows"), rows)
        models = Path(server.data_dir) / "models"
        found: dict[str, Measured] = {}
        for name, more in (("paced", ()), ("minilm", (str(models),))):
            async with shared_model.started(name, *more) as served:
                await ours.create(await server.create("ours", "rows"), served.url)
                found[name] = await _server(bench, server, served, name)
        await ours.create(await server.create("ours", "rows"), "", provider="minilm", models=models)
        idle, during = await _in_process(bench, server, models)
    fast = await _fast(bench)
    return _part(bench, found, idle, during, fast, server.settings)


async def _server(
    bench: Bench, server: postgres.Server, served: shared_model.SharedModel, name: str
) -> Measured:
    measured = Measured()
    for round in range(bench.rounds):
        async with _asking(await server.create("round", "ours"), served.url) as embedder:
            measured.idle += await _idle(embedder, bench.quick)
        for mode in ("adaptive", "unlimited"):
            dsn = await server.create("round", "ours")
            async with _draining(dsn, served.url, mode):
                await served.seen()
                measured.alone[mode].append(await _alone(bench, served))
            dsn = await server.create("round", "ours")
            async with _draining(dsn, served.url, mode), _asking(dsn, served.url) as embedder:
                await _both(bench, served, embedder, measured, mode)
            bench.say(
                f"sharing, {name}, round {round + 1}, {mode}: alone {measured.alone[mode][-1]:.1f}/s, shared "
                f"{measured.shared[mode][-1]:.1f}/s, queries p95 {p95(measured.queries[mode][-1]):.3f} s"
            )
    return measured


async def _alone(bench: Bench, served: shared_model.SharedModel) -> float:
    """Texts a second of the drain that runs."""
    await _under_way(bench, served)
    began = time.monotonic()
    await asyncio.sleep(bench.sized(int(SECONDS), 5))
    return sum(one.texts for one in await served.seen()) / (time.monotonic() - began)


async def _under_way(bench: Bench, served: shared_model.SharedModel) -> None:
    """The drain has sent its first requests and then run for a while; what was seen until then is forgotten."""
    deadline = time.monotonic() + START_SECONDS
    while not any(one.texts > 1 for one in await served.seen()):
        if time.monotonic() > deadline:
            raise AssertionError(f"the drain sent nothing within {START_SECONDS} s")
        await asyncio.sleep(0.2)
    await asyncio.sleep(bench.sized(int(WARM_SECONDS), 3))
    await served.seen()


async def _both(
    bench: Bench, served: shared_model.SharedModel, embedder: Embedder, measured: Measured, mode: str
) -> None:
    await _under_way(bench, served)
    began = time.monotonic()
    asking = asyncio.create_task(_queries(embedder, bench.sized(int(SECONDS), 5)))
    await asyncio.sleep(bench.sized(int(SECONDS), 5))
    seen, seconds = await served.seen(), time.monotonic() - began
    taken = await asking
    measured.queries[mode].append(taken)
    if mode == "adaptive":
        # Queries are single texts, too: as many of these as were asked are not the drain's.
        sizes = Counter(one.texts for one in seen)
        sizes[1] -= min(sizes[1], len(taken))
        usual = max(sizes, key=lambda size: sizes[size] * size)
        measured.sizes += sizes
        measured.smallest.append(median(one.worked for one in seen if one.texts == usual))
    asked = min(len(taken), sum(one.texts == 1 for one in seen))
    measured.shared[mode].append((sum(one.texts for one in seen) - asked) / seconds)


@asynccontextmanager
async def _draining(dsn: str, url: str, mode: str, **more: Any) -> AsyncIterator[None]:
    """A worker on all rows, as a process of its own, ended with SIGTERM."""
    arguments = ["--unlimited"] if mode == "unlimited" else []
    env = ours.settings(dsn, url, **more)
    if not url:
        del env["INSTEP_EMBED_URL"], env["INSTEP_EMBED_MODEL"]
    process = await asyncio.create_subprocess_exec(
        *processes.python("benchmarks.contestants.ours", *arguments), cwd=processes.ROOT,
        env=processes.environment(env), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
        if process.returncode is not None:
            raise AssertionError("the drain ended before it was measured: more rows are needed")
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def _asking(dsn: str, url: str) -> AsyncIterator[Embedder]:
    """The client of a process that asks queries, as a search has it."""
    settings = Settings.load(flags={"database_url": dsn}, environ={})
    async with await Database.open(settings) as database:
        signals = Interactive(database)
        embedder = create_embedder("tei", url=url, model="instant", request_timeout=120, precedence=signals)
        try:
            await embedder.probe()
            yield embedder
        finally:
            await embedder.close()
            await signals.close()


async def _idle(embedder: Embedder, quick: bool) -> list[float]:
    return [await _query(embedder, number) for number in range(5 if quick else IDLE_QUERIES)]


async def _queries(embedder: Embedder, seconds: float) -> list[float]:
    """Asked whether those before are answered or not; seconds of each."""
    draw, until = random.Random(7), time.monotonic() + seconds
    tasks = []
    while time.monotonic() < until:
        tasks.append(asyncio.create_task(_query(embedder, len(tasks))))
        await asyncio.sleep(draw.uniform(0.2, 1.8) * EVERY)
    return list(await asyncio.gather(*tasks))


async def _query(embedder: Embedder, number: int) -> float:
    began = time.monotonic()
    answer = await embedder.embed([f"how do I tune the {number}th string of a harp"], urgent=True)
    if answer.failures:
        raise AssertionError(f"a query failed: {answer.failures}")
    return time.monotonic() - began


async def _in_process(bench: Bench, server: postgres.Server, models: Path) -> tuple[list[float], list[float]]:
    """Queries of this process, with the model inside it; alone, and while another process drains with its own."""
    idle: list[float] = []
    during: list[float] = []
    embedder = create_embedder("minilm", cache_dir=models)
    try:
        await embedder.probe()
        for round in range(bench.rounds):
            idle += await _idle(embedder, bench.quick)
            dsn = await server.create("round", "ours")
            async with _draining(dsn, "", "adaptive", embed_provider="minilm", models_dir=models):
                await asyncio.sleep(bench.sized(int(WARM_SECONDS), 6))
                during += await _queries(embedder, bench.sized(int(SECONDS), 5))
            bench.say(
                f"sharing, in the process, round {round + 1}: p95 {p95(idle):.4f} s, during {p95(during):.4f} s"
            )
    finally:
        await embedder.close()
    return idle, during


async def _fast(bench: Bench) -> dict[str, list[float]]:
    """Texts a second of a client alone, with a server that answers at once."""
    texts = [f"this is a short text about number {number}" for number in range(bench.sized(FAST_TEXTS, 2000))]
    kinds = {"adaptive": adaptive.AdaptiveLimit, "unlimited": FixedLimit}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    usual = adaptive.AdaptiveLimit
    async with model.started() as served:
        for _ in range(3 + 3 * bench.rounds):
            for kind, limit in kinds.items():
                adaptive.AdaptiveLimit = limit  # type: ignore[assignment,misc]
                embedder = create_embedder("tei", url=served.url, model="instant", concurrency=8, batch=64)
                try:
                    await embedder.embed(texts[:512])
                    began = time.monotonic()
                    for at in range(0, len(texts), 1000):
                        await embedder.embed(texts[at : at + 1000])
                    rates[kind].append(len(texts) / (time.monotonic() - began))
                finally:
                    adaptive.AdaptiveLimit = usual  # type: ignore[misc]
                    await embedder.close()
    return rates


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


def _part(
    bench: Bench,
    found: dict[str, Measured],
    idle: list[float],
    during: list[float],
    fast: dict[str, list[float]],
    settings: dict[str, Any],
) -> Part:
    figures, rows = [], []
    names = {"paced": "0.09 s a query", "minilm": "MiniLM served"}
    for key, name in names.items():
        one = found[key]
        slow = median(p95(taken) for taken in one.queries["adaptive"])
        smallest = median(one.smallest)
        figures += [
            Figure(f"{name}: query, idle, median", median(one.idle), "s"),
            Figure(f"{name}: smallest bulk request", smallest, "s"),
            Figure(f"{name}: query p95 during a drain", slow, "s", at_most=median(one.idle) + 1.5 * smallest),
            Figure(
                f"{name}: the same without the limit",
                median(p95(taken) for taken in one.queries["unlimited"]),
                "s",
            ),
            Figure(
                f"{name}: bulk with the limit / without, no queries",
                median(one.alone["adaptive"]) / median(one.alone["unlimited"]),
                "×",
                at_least=GOAL_ALONE,
            ),
            Figure(
                f"{name}: bulk at two queries a second / unlimited and alone",
                median(one.shared["adaptive"]) / median(one.alone["unlimited"]),
                "×",
                at_least=GOAL_SHARED,
            ),
        ]
        if key == "paced":
            figures.append(
                Figure(
                    f"{name}: query p95 during a drain (reference: 8 to 10)", slow, "s", at_most=GOAL_PACED
                )
            )
        common = ", ".join(f"{size}: {count}" for size, count in one.sizes.most_common(4))
        rows.append([name, median(one.idle), slow, common])
    figures += [
        Figure("in the process: query p95, idle", p95(idle), "s"),
        Figure("in the process: query p95, while another process drains / idle", p95(during) / p95(idle), "×",
               at_most=GOAL_IN_PROCESS),
        Figure("a server that answers at once: with the limit / without", median(fast["adaptive"]) / median(fast["unlimited"]),
               "×", at_least=GOAL_FAST),
    ]  # fmt: skip
    rows.append(["the reference", REFERENCE_IDLE, "{:.0f} to {:.0f}".format(*REFERENCE_DRAIN), "not known"])
    return Part(
        "sharing",
        f"Queries, {1 / EVERY:.0f} a second at uneven times whether answered or not, and a worker that drains, on one model server: first "
        "come first served, one request after another, a queue of 512; all as processes. The drain has run for "
        f"{WARM_SECONDS:.0f} s when the first query comes; all queries count. Without the limit: {8} requests of "
        f"{shared_model.LARGEST} texts at once. Medians of {bench.rounds} rounds.",
        figures,
        [
            Table(
                "Beside the reference's figures",
                ("server", "query idle, s", "p95 during a drain, s", "texts of a bulk request: how many"),
                rows,
            )
        ],
        rounds={
            "servers": {
                key: {
                    "idle": one.idle,
                    "queries": one.queries,
                    "alone": one.alone,
                    "shared": one.shared,
                    "smallest": one.smallest,
                    "sizes": {str(size): count for size, count in one.sizes.items()},
                }
                for key, one in found.items()
            },
            "in process": {"idle": idle, "during": during},
            "fast": fast,
        },
        settings=settings,
    )
