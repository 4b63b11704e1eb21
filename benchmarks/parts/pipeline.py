"""The embedding derivation alone, against pgai's worker, CocoIndex, and a hand-written loop with no queue.

All contestants work the same rows, with the same model server, each as a process of its own on a fresh copy of a
database in which its work waits. First every setting is tried once, then the two best of each contestant take turns.
The clock of everybody runs from the first request that reaches the model server to the last commit of a row
(`track_commit_timestamp`): nobody pays for imports and connections, which is in pgai's favour.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import documents, environments, model, postgres, processes
from benchmarks.bench import Bench
from benchmarks.contestants import cocoindex, loop, ours, pgai, sketch
from benchmarks.environments import COCOINDEX, PGAI, Environment
from benchmarks.report import Figure, Part, Table

ROWS = 20_000
LOOP_SETTINGS = ((500, 32), (1000, 32), (1000, 64), (1000, 128), (2000, 128))
OUR_SETTINGS = (
    (500, 32, 8), (500, 64, 8), (1000, 32, 8), (1000, 64, 8), (1000, 128, 8), (1000, 128, 4), (2000, 128, 8),
)  # fmt: skip
PEER_SETTINGS = ((50, 1), (50, 4), (500, 1), (500, 4), (2000, 1), (2000, 4))
GOAL_PEER, GOAL_LOOP, GOAL_SKETCH, GOAL_MEMORY = 5.0, 0.55, 0.9, 200.0


@dataclass(slots=True)
class Round:
    rows_per_second: float
    whole_run: (
        float  # rows/s with everything between the call to run and the last commit; 0 where it is not known
    )
    cpu_seconds: float  # of the whole process, start and imports included
    peak_bytes: int
    requests: int


@dataclass(slots=True)
class Entrant:
    """One contestant with one setting. `command`, `env`, `prepare` and `after` are given the round's DSN."""

    contestant: str
    setting: str
    template: str
    table: str
    found: str
    command: Callable[[str], Sequence[str]]
    env: Callable[[str], Mapping[str, str]] = field(default_factory=lambda: _no_environment)
    prepare: Callable[[str], Awaitable[None]] | None = None
    after: Callable[[str], Awaitable[None]] | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def rows_per_second(self) -> float:
        return median(round.rows_per_second for round in self.rounds)

    @property
    def best(self) -> float:
        return max(round.rows_per_second for round in self.rounds)

    @property
    def peak_megabytes(self) -> float:
        return max(round.peak_bytes for round in self.rounds) / processes.MEGABYTE


async def measure(bench: Bench) -> Part:
    rows = bench.sized(ROWS, 300)
    for peer in _peers(bench):
        bench.say(f"pipeline: {peer.title}" + ("" if peer.installed() else " is being installed"))
        await peer.install()
    with tempfile.TemporaryDirectory() as directory:
        async with postgres.server(**postgres.SETTINGS) as server, model.started() as served:
            entrants = await _prepared(bench, server, served, rows, Path(directory))
            for entrant in entrants:
                await _round(bench, server, served, entrant, rows)
            finalists = _finalists(entrants)
            for _ in range(bench.rounds):
                for entrant in finalists:
                    await _round(bench, server, served, entrant, rows)
    for entrant in finalists:
        if len(entrant.rounds) > 1:
            del entrant.rounds[0]  # the trial: it decided who is here
    return await _part(bench, server, entrants, finalists, rows)


def _peers(bench: Bench) -> list[Environment]:
    return [*([PGAI] if bench.with_pgai else []), *([COCOINDEX] if bench.with_peers else [])]


async def _prepared(
    bench: Bench, server: postgres.Server, served: model.Model, rows: int, directory: Path
) -> list[Entrant]:
    await documents.create(await server.create("rows"), rows)
    await loop.create(await server.create("loop", "rows"))
    await sketch.create(await server.create("sketch", "rows"))
    chunk = await ours.create(await server.create("ours", "rows"), served.url)
    url = served.url
    entrants = [
        Entrant(f"sketch, {mode}", "page 500, requests of 32", "sketch", "i.chunk", sketch.FOUND,
                partial(_module, "sketch", (mode,), (url, "san")))
        for mode in ("loop", "protocol")
    ]  # fmt: skip
    entrants += [
        Entrant("hand-written loop", f"page {page:,}, requests of {request}", "loop", "vectors", loop.FOUND,
                partial(_module, "loop", (), (url, str(page), str(request))))
        for page, request in LOOP_SETTINGS[: 1 if bench.quick else None]
    ]  # fmt: skip
    entrants += [
        Entrant("instep", f"batch {batch:,}, requests of {request}, {at_once} at once", "ours", chunk, ours.found(chunk),
                partial(_worker, ()), partial(_settings, url, batch, request, at_once), after=partial(_finds_nothing, url))
        for batch, request, at_once in OUR_SETTINGS[: 1 if bench.quick else None]
    ]  # fmt: skip
    if bench.with_pgai:
        await pgai.create(await server.create("pgai", "rows"), served.ollama_url)
        entrants += [
            Entrant("pgai", f"batch {batch:,}, {at_once} at once", "pgai", pgai.TABLE, pgai.FOUND,
                    partial(pgai.command, at_once), partial(_variables, PGAI), prepare=partial(pgai.configure, batch, at_once))
            for batch, at_once in PEER_SETTINGS
        ]  # fmt: skip
    if bench.with_peers:
        entrants += [
            Entrant("CocoIndex", setting, "rows", cocoindex.TABLE, cocoindex.FOUND,
                    partial(cocoindex.command, mode, group, url, directory), partial(_variables, COCOINDEX))
            for setting, (mode, group) in cocoindex.SETTINGS.items()
        ]  # fmt: skip
    return entrants


def _module(name: str, before: Sequence[str], after: Sequence[str], dsn: str) -> Sequence[str]:
    return processes.python(f"benchmarks.contestants.{name}", *before, dsn, *after)


def _worker(arguments: Sequence[str], _: str) -> Sequence[str]:
    return processes.python("benchmarks.contestants.ours", *arguments)


def _settings(url: str, batch: int, request: int, at_once: int, dsn: str) -> Mapping[str, str]:
    return ours.settings(dsn, url, batch_size=batch, embed_batch_size=request, embed_concurrency=at_once)


def _variables(peer: Environment, _: str) -> Mapping[str, str]:
    return peer.variables


def _no_environment(_: str) -> Mapping[str, str]:
    return {}


async def _round(
    bench: Bench, server: postgres.Server, served: model.Model, entrant: Entrant, rows: int
) -> None:
    dsn = await server.create("round", entrant.template)
    if entrant.prepare is not None:
        await entrant.prepare(dsn)
    await served.seen()
    ended = await processes.run(entrant.command(dsn), entrant.env(dsn))
    seen = await served.seen()
    last = await documents.last_commit(dsn, entrant.table)
    await documents.verify(dsn, rows, entrant.found)
    said = ended.json() if ended.out.strip() else {}
    entrant.rounds.append(
        Round(
            rows / (last - seen["first"]),
            rows / (last - said["began"]) if "began" in said else 0.0,
            ended.cpu_seconds,
            ended.peak_bytes,
            int(seen["requests"]),
        )
    )
    if entrant.after is not None:
        await entrant.after(dsn)
    bench.say(
        f"pipeline: {entrant.contestant}, {entrant.setting}: {entrant.rounds[-1].rows_per_second:,.0f} rows/s"
    )


async def _finds_nothing(url: str, dsn: str) -> None:
    """A complete sweep of ours afterwards has nothing to add."""
    env = ours.settings(dsn, url, sweep_every_seconds=0.001)
    counters = (await processes.run(processes.python("benchmarks.contestants.ours"), env)).json()["counters"]
    if any(counters.values()):
        raise AssertionError(f"a sweep afterwards found work: {counters}")


def _finalists(entrants: Sequence[Entrant]) -> list[Entrant]:
    """The two best settings of each contestant."""
    names = dict.fromkeys(entrant.contestant for entrant in entrants)
    return [
        entrant
        for name in names
        for entrant in sorted(
            (one for one in entrants if one.contestant == name), key=lambda one: -one.rows_per_second
        )[:2]
    ]


async def _part(
    bench: Bench,
    server: postgres.Server,
    entrants: Sequence[Entrant],
    finalists: Sequence[Entrant],
    rows: int,
) -> Part:
    best: dict[str, Entrant] = {}
    for entrant in finalists:
        held = best.get(entrant.contestant)
        if held is None or entrant.rows_per_second > held.rows_per_second:
            best[entrant.contestant] = entrant
    mine, by_hand = best["instep"], best["hand-written loop"]
    sketched = max((best["sketch, loop"],), key=lambda one: one.rows_per_second)
    fastest = max((by_hand, sketched), key=lambda one: one.rows_per_second)
    figures = [
        Figure("instep", mine.rows_per_second, "rows/s"),
        Figure("instep, from the call to run on", median(r.whole_run for r in mine.rounds), "rows/s"),
        Figure("fastest loop without a queue", fastest.rows_per_second, "rows/s"),
        Figure(
            "instep / fastest loop", mine.rows_per_second / fastest.rows_per_second, "×", at_least=GOAL_LOOP
        ),
        # On a machine that others use too: what disturbs a round only ever slows it.
        Figure("the same, by the best round of each", mine.best / fastest.best, "×"),
        Figure(
            "hand-written loop / the sketch's",
            by_hand.rows_per_second / sketched.rows_per_second,
            "×",
            at_least=GOAL_SKETCH,
        ),
        Figure(
            "the sketch's protocol / fastest loop",
            best["sketch, protocol"].rows_per_second / fastest.rows_per_second,
            "×",
        ),
        Figure("instep, memory at its highest", mine.peak_megabytes, "MB", at_most=GOAL_MEMORY),
    ]
    for name, goal in (("CocoIndex", None), ("pgai", GOAL_PEER)):
        if name not in best:
            continue
        peer = best[name]
        figures[3:3] = [
            Figure(f"{name} at its best", peer.rows_per_second, "rows/s"),
            Figure(f"instep / {name}", mine.rows_per_second / peer.rows_per_second, "×", at_least=goal),
            Figure(f"the same, by the best round of each ({name})", mine.best / peer.best, "×"),
        ]
    return Part(
        "pipeline",
        f"{rows:,} short rows, a model server that answers at once (384 dimensions), one worker process; "
        "from the first request to the last commit; no vector index for anybody.",
        figures,
        [
            Table(
                "Every setting (two of each contestant took turns, the others ran once)",
                (
                    "contestant",
                    "setting",
                    "rounds",
                    "rows/s, median",
                    "best",
                    "CPU s, whole process",
                    "MB",
                    "requests",
                ),
                [
                    [
                        entrant.contestant,
                        entrant.setting,
                        len(entrant.rounds),
                        entrant.rows_per_second,
                        entrant.best,
                        median(round.cpu_seconds for round in entrant.rounds),
                        entrant.peak_megabytes,
                        entrant.rounds[-1].requests,
                    ]
                    for entrant in entrants
                ],
            )
        ],
        [
            f"after each round: {rows:,} vectors, one for each row, each equal to the server's answer for its text",
            "after each round of ours: a complete sweep found nothing to do",
            "memory: high-water mark of the worker's process tree, the database server not included",
            *([] if bench.with_pgai else ["pgai did not take part: --with-pgai installs it"]),
            *([] if bench.with_peers else ["CocoIndex did not take part (--without-peers)"]),
        ],
        rounds={f"{entrant.contestant}, {entrant.setting}": _plain(entrant.rounds) for entrant in entrants},
        settings=server.settings | await environments.versions(*_peers(bench)),
    )


def _plain(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    return [{name: getattr(round, name) for name in Round.__slots__} for round in rounds]
