"""A run as it goes: two bars on a terminal, a line for each wave elsewhere. Both are observers of the engine.

Counts are entries. `total` is what is done and what waits, so it grows while the run still looks for changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from instep.clock import SYSTEM, Clock
from instep.console.figures import count, duration, left, plural
from instep.console.terminal import Terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

RATE_WINDOW_SECONDS = 30.0
LINE_EVERY_SECONDS = 1.0
FAILURES_SHOWN = 5
SEEN_OTHERWISE = {"progress", "committed", "wave", "failed"}  # what bars and lines are made of


@dataclass
class Line:
    """What is known of one derivation's run."""

    name: str
    began: float
    done: int = 0
    waiting: int = 0
    finding: bool = True
    announced: bool = False
    finished_after: float | None = None
    failed_keys: list[tuple[Any, ...]] = field(default_factory=list)
    failures: int = 0
    samples: deque[tuple[float, int]] = field(
        default_factory=deque
    )  # the first is as old as the rate looks back

    def __post_init__(self) -> None:
        self.samples.append((self.began, 0))

    @property
    def total(self) -> int:
        return self.done + self.waiting

    def count_up(self, now: float, fields: Mapping[str, Any]) -> None:
        done = int(fields["indexed"]) + int(fields["removed"])
        if "waiting" in fields:
            self.waiting = int(fields["waiting"])
        else:
            self.waiting = max(0, self.waiting - (done - self.done))
        self.done = done
        self.samples.append((now, done))
        while len(self.samples) > 1 and self.samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self.samples.popleft()

    def rate(self, now: float) -> float | None:
        """Entries for each second, over the last half minute."""
        then, before = self.samples[0]
        passed = now - then
        return (self.done - before) / passed if passed > 0.5 else None


class Watch:
    """What bars and lines share: they keep count, and say what a person should hear of at once."""

    def __init__(self, terminal: Terminal, batch_size: int, clock: Clock = SYSTEM) -> None:
        self.terminal = terminal
        self.batch_size = batch_size
        self.clock = clock
        self.lines: dict[str, Line] = {}
        self.last_wave = clock.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        now = self.clock.monotonic()
        line = self._line(str(fields["derivation"]), now) if "derivation" in fields else None
        if line is not None:
            self._count(line, name, fields, now)
        said = _said(name, fields)
        if said:
            self.terminal.note(said)
        elif name not in SEEN_OTHERWISE:
            import structlog

            structlog.get_logger("instep.run").debug(name, **fields)
        if line is not None and name != "wave":  # what it made is told when it is written
            self.show(line)

    def show(self, line: Line | None = None) -> None:
        """Bring what is seen up to date."""

    def waved(self, line: Line, size: int, seconds: float) -> None:
        """A wave was computed."""

    def _line(self, name: str, now: float) -> Line:
        if name not in self.lines:
            self.lines[name] = Line(name, now)
        return self.lines[name]

    def _count(self, line: Line, name: str, fields: Mapping[str, Any], now: float) -> None:
        if name in ("progress", "committed", "finished"):
            line.count_up(now, fields)
        if name == "progress":
            line.finding = bool(fields["finding"])
            self._announce(line)
        elif name == "wave":
            self.last_wave = now
            self.waved(line, int(fields["size"]), float(fields["seconds"]))
        elif name == "finished":
            line.finding = False
            line.finished_after = now - line.began
        elif name == "failed":
            line.failures += 1
            line.failed_keys.append(tuple(fields["key"]))
            if line.failures <= FAILURES_SHOWN:
                self.terminal.note(
                    f"{line.name}  {key_text(fields['key'])}: {fields['kind']}: {fields['message']}"
                )
            elif line.failures == FAILURES_SHOWN + 1:
                self.terminal.note(f"{line.name}  more failures are not shown one by one")

    def _announce(self, line: Line) -> None:
        """The first line: what is pending, and the batch size."""
        if line.announced or (line.finding and not line.waiting):
            return
        line.announced = True
        if line.waiting:
            more = " so far, looking for more" if line.finding else ""
            self.terminal.note(
                f"{line.name}  {count(line.waiting)} waiting{more} · batches of {self.batch_size}"
            )


class Lines(Watch):
    """A line for each wave, at most one a second for each derivation; the waves between are added up."""

    def __init__(self, terminal: Terminal, batch_size: int, clock: Clock = SYSTEM) -> None:
        super().__init__(terminal, batch_size, clock)
        self._told: dict[str, float] = {}
        self._untold: dict[str, tuple[int, int, float]] = {}

    def waved(self, line: Line, size: int, seconds: float) -> None:
        waves, entries, spent = self._untold.get(line.name, (0, 0, 0.0))
        self._untold[line.name] = (waves + 1, entries + size, spent + seconds)

    def show(self, line: Line | None = None) -> None:
        for name in list(self._untold):
            now = self.clock.monotonic()
            ended = line is None or (line.name == name and line.finished_after is not None)
            if ended or now - self._told.get(name, 0.0) >= LINE_EVERY_SECONDS:
                self._told[name] = now
                self._tell(self.lines[name], *self._untold.pop(name))

    def _tell(self, line: Line, waves: int, entries: int, spent: float) -> None:
        what = f"wave of {count(entries)}" if waves == 1 else f"{waves} waves of {count(entries)} together"
        self.terminal.note(
            f"{line.name}  {what} in {duration(spent)} · {count(line.done)} done · {count(line.waiting)} left"
        )


class Bars(Watch):
    """A moving bar for each derivation: done of total, rate, time left."""

    def __init__(self, terminal: Terminal, batch_size: int, clock: Clock = SYSTEM) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(terminal, batch_size, clock)
        self._progress: Progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[count]}", justify="right"),
            TextColumn("{task.fields[pace]}"),
            console=terminal.err,
            refresh_per_second=5,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, line: Line | None = None) -> None:
        if line is None:
            return
        if line.name not in self._tasks:
            self._tasks[line.name] = self._progress.add_task(line.name, total=None, count="", pace="looking")
        total = line.total or None
        if line.finished_after is not None and not total:
            self._progress.update(
                self._tasks[line.name], total=1, completed=1, count="0", pace="nothing to do"
            )
            return
        self._progress.update(
            self._tasks[line.name],
            total=total,
            completed=line.done,
            count=f"{count(line.done)}/{count(line.total)}" if total else "",
            pace=self._pace(line),
        )

    def _pace(self, line: Line) -> str:
        if line.finished_after is not None:
            return f"done in {duration(line.finished_after)}" if not line.waiting else "stopped"
        rate = line.rate(self.clock.monotonic())
        if not rate:
            return "looking for changes" if line.finding and not line.waiting else ""
        pace = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
        return f"{pace}  {left(line.waiting / rate)}" if line.waiting and not line.finding else pace


def watch(terminal: Terminal, batch_size: int, *, lines: bool = False) -> Watch:
    """Bars where somebody looks, lines elsewhere or where they are asked for."""
    if terminal.live and not lines:
        return Bars(terminal, batch_size)
    return Lines(terminal, batch_size)


@contextmanager
def loading(terminal: Terminal, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for one plain count, on a terminal; elsewhere nothing. Gives the function that is told how many are done."""
    if not terminal.live:
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", style="bold"), BarColumn(bar_width=36), MofNCompleteColumn())
    with Progress(*columns, console=terminal.err, transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def key_text(key: Sequence[Any]) -> str:
    """A key as commands take it: the value, or a JSON array of a composite one's."""
    from instep.engine.keys import format_key

    return format_key(tuple(key))


def _said(name: str, fields: Mapping[str, Any]) -> str:
    """The sentence for an event that people should hear of, or nothing."""
    who = fields.get("derivation") or fields.get("source") or ""
    if name == "repaired":
        what = fields["what"]
        what = what if isinstance(what, str) else ", ".join(map(str, what))
        return f"{who}  repaired: {what}; what was written meanwhile is looked for"
    if name == "made again":
        return f"{who}  its index was lost or is of another time: everything is made again"
    if name == "held elsewhere":
        hint = fields.get("hint")
        return f"{who}  {fields['message']}" + (f"\n  {hint}" if hint else "")
    if name == "left to the lease":
        return (
            f"{who}  {plural(int(fields['size']), 'entry', 'entries')} left to the lease: {fields['message']}"
        )
    if name == "abandoned":
        return (
            f"{who}  abandoned a wave of {count(int(fields['size']))}: {fields['stage']} took longer than "
            f"{duration(float(fields['budget_seconds']))}; it is tried again when its lease has run out"
        )
    if name == "paused":
        return f"{who}  paused: {fields['message']}; what is in hand is finished"
    if name == "resumed":
        return f"{who}  resumed"
    if name == "pause unreadable":
        return f"{who}  the pause switch cannot be read, going on: {fields['message']}"
    if name == "outage":
        return f"{who}  {fields['message']}; next try in {duration(float(fields['seconds']))}"
    return ""
