"""Contestants with several settings: each setting is tried once, then the two best of each contestant take turns.

Turns, so that whatever else the machine does hits all alike; the best settings, so that nobody is beaten at his worst.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.bench import Bench

FINALISTS = 2


@dataclass(slots=True)
class Entrant:
    """One contestant with one setting. `work` measures one round and tells at least its "rate", higher is better."""

    contestant: str
    setting: str
    work: Callable[[], Awaitable[Mapping[str, Any]]]
    rounds: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.contestant}, {self.setting}"

    @property
    def rate(self) -> float:
        return self.of("rate")

    @property
    def best(self) -> float:
        return max(float(one["rate"]) for one in self.rounds)

    def of(self, name: str) -> float:
        """The median of one of the values that rounds tell."""
        return median(float(one[name]) for one in self.rounds)


async def take(bench: Bench, part: str, entrants: Sequence[Entrant]) -> dict[str, Entrant]:
    """The best of each contestant by its median, after `bench.rounds` rounds of its two best settings."""

    async def turn(entrant: Entrant) -> None:
        entrant.rounds.append(await entrant.work())
        bench.say(f"{part}: {entrant.name}: {entrant.rounds[-1]['rate']:,.0f}/s")

    for entrant in entrants:
        await turn(entrant)
    names = dict.fromkeys(entrant.contestant for entrant in entrants)
    finalists = [
        entrant
        for name in names
        for entrant in sorted((one for one in entrants if one.contestant == name), key=lambda one: -one.rate)[
            :FINALISTS
        ]
    ]
    for _ in range(bench.rounds):
        for entrant in finalists:
            await turn(entrant)
    for entrant in finalists:
        del entrant.rounds[0]  # the trial: it decided who is here
    return {
        name: max((one for one in finalists if one.contestant == name), key=lambda one: one.rate)
        for name in names
    }
