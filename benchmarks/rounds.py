"""What is said of several rounds of one measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of a series in its order; at least four values."""
    if len(values) < 4:
        raise ValueError(f"{len(values)} values have no quarters")
    size = len(values) / 4
    return [median(values[round(part * size) : round((part + 1) * size)]) for part in range(4)]


def spread(values: Sequence[float]) -> float:
    """Largest minus smallest, in parts of the median: how noisy the rounds were."""
    return (max(values) - min(values)) / median(values)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` per cent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]
