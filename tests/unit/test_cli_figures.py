"""Numbers, durations and sizes as people read them."""

from __future__ import annotations

import pytest

from instep.console import figures


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0314, "31 ms"),
        (0.3, "0.3 s"),
        (1.94, "1.9 s"),
        (9.96, "10 s"),
        (41, "41 s"),
        (59.6, "1 m 0 s"),
        (821, "13 m 41 s"),
        (7500, "2 h 5 m"),
        (273_600, "3 d 4 h"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert figures.duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(279, "4:39 left"), (3725, "1:02:05 left"), (-1, "0:00 left")]
)
def test_time_left_reads_like_a_clock(seconds: float, words: str) -> None:
    assert figures.left(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (812, "812 B"),
        (118_000, "118 kB"),
        (118_000_000, "118 MB"),
        (1_200_000_000, "1.2 GB"),
        (999_600, "1.0 MB"),
    ],
)
def test_size(number: int, words: str) -> None:
    assert figures.size(number) == words


def test_only_all_is_a_hundred_per_cent() -> None:
    """A catalogue with one missing row must not look complete."""
    assert [figures.percent(f) for f in (0.754, 0.999999, 1.0)] == ["75.4%", "99.9%", "100%"]


def test_counts_and_ages() -> None:
    assert figures.plural(1, "row") == "1 row"
    assert figures.plural(63_681, "entry", "entries") == "63,681 entries"
    assert [figures.age(s) for s in (0.2, 8, 780, 21_600, 90_000)] == ["now", "8 s", "13 m", "6 h", "1 d"]
    assert figures.ago(0) == "just now"
