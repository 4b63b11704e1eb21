"""A run as it is seen: what lines and bars say of the engine's events."""

from __future__ import annotations

import io
import sys
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console

from instep.console.progress import Bars, Line, Lines, key_text, watch
from instep.console.terminal import Terminal
from instep.engine.ports import COUNTERS

ZERO = dict.fromkeys(COUNTERS, 0)


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        raise NotImplementedError

    def uniform(self, low: float, high: float) -> float:
        return low

    def token(self) -> int:
        return 1


class Scene:
    def __init__(self, watching: type[Lines] | type[Bars] = Lines, *, terminal: bool = False) -> None:
        self.clock, self.seen = Hand(), io.StringIO()
        self.terminal = Terminal()
        self.terminal.__dict__["err"] = Console(
            file=self.seen,
            force_terminal=terminal,
            width=110,
            highlight=False,
            markup=False,
            color_system=None,
        )
        self.watch = watching(self.terminal, 500, self.clock)

    def event(self, name: str, **fields: Any) -> None:
        self.watch.event(name, {"derivation": "packages.embed", **fields})

    def wave(self, size: int, *, indexed: int, after: float) -> None:
        self.clock.time += after
        self.event("wave", size=size, seconds=after)
        self.event("committed", **ZERO | {"indexed": indexed})

    @property
    def lines(self) -> list[str]:
        return self.seen.getvalue().splitlines()


def test_first_line_says_what_is_pending_and_the_batch_size() -> None:
    scene = Scene()
    scene.event("progress", waiting=0, finding=True, **ZERO)
    scene.event("progress", waiting=4000, finding=False, **ZERO)
    scene.event("progress", waiting=4000, finding=False, **ZERO)
    assert scene.lines == ["packages.embed  4,000 waiting · batches of 500"]


def test_each_wave_has_a_line_with_size_and_duration() -> None:
    scene = Scene()
    scene.event("progress", waiting=1000, finding=False, **ZERO)
    scene.wave(500, indexed=500, after=8.0)
    scene.wave(500, indexed=1000, after=8.2)
    assert scene.lines[1:] == [
        "packages.embed  wave of 500 in 8.0 s · 500 done · 500 left",
        "packages.embed  wave of 500 in 8.2 s · 1,000 done · 0 left",
    ]


def test_quick_waves_share_a_line_of_each_second() -> None:
    """A fast server must not fill a log file."""
    scene = Scene()
    for number in range(1, 31):
        scene.wave(500, indexed=500 * number, after=0.1)
    with scene.watch:
        pass
    assert 2 <= len(scene.lines) <= 5
    told = sum(int(line.split(" of ")[1].split(" ")[0].replace(",", "")) for line in scene.lines)
    assert told == 15_000, "no wave is left out"


def test_failures_are_named_and_then_only_counted() -> None:
    scene = Scene()
    for number in range(9):
        scene.event("failed", key=(f"row {number}",), kind="input refused", message="400 too long")
    assert scene.lines[0] == "packages.embed  row 0: input refused: 400 too long"
    assert len(scene.lines) == 6
    assert scene.watch.lines["packages.embed"].failures == 9


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("abandoned", {"stage": "compute", "budget_seconds": 600.0, "size": 500}, "compute took longer than 10 m 0 s"),
        ("outage", {"message": "no answer", "seconds": 5.0}, "no answer; next try in 5.0 s"),
        ("held elsewhere", {"message": "held by host 7", "hint": "wait"}, "held by host 7\n  wait"),
        ("left to the lease", {"size": 1, "message": "gone"}, "1 entry left to the lease"),
        ("made again", {"target": "x"}, "everything is made again"),
    ],
)  # fmt: skip
def test_what_a_person_should_hear_of_is_said(name: str, fields: dict[str, Any], words: str) -> None:
    scene = Scene()
    scene.event(name, **fields)
    assert words in scene.seen.getvalue()


def test_repair_of_a_source_is_said() -> None:
    scene = Scene()
    scene.watch.event("repaired", {"source": "packages", "what": "trigger was missing"})
    assert scene.lines == [
        "packages  repaired: trigger was missing; what was written meanwhile is looked for"
    ]


def test_bar_shows_count_rate_and_time_left() -> None:
    scene = Scene(Bars, terminal=True)
    with scene.watch:
        scene.event("progress", waiting=63_681, finding=False, **ZERO)
        scene.wave(47_500, indexed=47_500, after=820.0)
        shown = scene.watch._progress.tasks[0]
        assert shown.fields["count"] == "47,500/63,681"
        assert shown.fields["pace"] == "58/s  4:39 left"
        scene.event("finished", waiting=0, **ZERO | {"indexed": 63_681})
        assert scene.watch._progress.tasks[0].fields["pace"] == "done in 13 m 40 s"


def test_rate_is_of_the_last_half_minute() -> None:
    """After a pause the bar tells the pace of now, not the mean of the day."""
    line = Line("x", began=0.0)
    for second in range(0, 101, 10):
        line.count_up(float(second), ZERO | {"indexed": 0 if second <= 60 else (second - 60) * 50})
    assert line.rate(100.0) == pytest.approx(50.0)


def test_lines_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(watch(Terminal(), 500), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(watch(Terminal(), 500), Bars)
    assert isinstance(watch(Terminal(), 500, lines=True), Lines)


def test_composite_key_is_a_json_array() -> None:
    assert key_text(("libfoo",)) == "libfoo"
    assert key_text(("de", 4711)) == '["de",4711]'
