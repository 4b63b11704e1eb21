"""Reciprocal rank fusion: a row's score is the sum of 1 / (k + rank) over the legs that found it.

Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
SIGIR 2009, with their k of 60. Scores of different legs are never compared, only ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from instep.engine.declaration import Key

K = 60


@dataclass(frozen=True, slots=True)
class Fused:
    key: Key
    score: float  # 0 to 1; 1: first in every leg
    ranks: Mapping[str, int]  # leg → rank, from 1


def fuse(legs: Mapping[str, Sequence[Key]], k: int = K) -> list[Fused]:
    """All rows of all legs, best first; equal ones in the order of the best rank, then of the legs."""
    ranks: dict[Key, dict[str, int]] = {}
    for leg, keys in legs.items():
        for rank, key in enumerate(keys, 1):
            ranks.setdefault(key, {}).setdefault(leg, rank)
    best = len(legs) / (k + 1)
    fused = [
        Fused(key, sum(1 / (k + rank) for rank in found.values()) / best, found)
        for key, found in ranks.items()
    ]
    fused.sort(key=lambda row: (-row.score, min(row.ranks.values())))
    return fused
