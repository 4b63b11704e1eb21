"""Named places at which a test makes this process die or stand still: INSTEP_FAILPOINT=commit.stamped:2 ends it with
SIGKILL when it comes there for the second time, commit.stamped:2:stop stops it there (SIGSTOP).

Off, `reach` is a function that does nothing. Who calls it names the module's attribute (`failpoints.reach(…)`), never
a copy of it, because `arm` replaces it. Tests: tests/faults/, where each point is the end of a real worker.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

Point = Literal[
    "install.locked", "install.tables", "install.captured", "install.committed",
    "add.prepared", "add.committed",
    "remove.retired", "remove.dropped", "remove.committed", "remove.outputs",
    "migrate.locked", "migrate.applied", "migrate.committed",
    "verify.mended", "verify.committed",
    "absorb.begun", "absorb.taken", "absorb.committed",
    "sweep.begun", "sweep.bounded", "sweep.enqueued", "sweep.committed", "sweep.buried", "sweep.ended",
    "run.started", "run.finished",
    "exclusive.acquired", "exclusive.released",
    "claim.begun", "claim.taken", "claim.committed", "claim.suspect", "claim.buried", "claim.let_in",
    "load.begun", "load.stamps", "load.loaded",
    "compute.begun", "compute.done",
    "commit.begun", "commit.fenced", "commit.written", "commit.stamped", "commit.finished", "commit.committed",
    "renew.begun",
    "renew.changed", "renew.committed",
    "release.begun", "release.changed", "release.committed",
    "park.begun", "park.changed", "park.committed",
    "fail.begun", "fail.locked", "fail.recorded", "fail.committed",
    "dead.locked", "dead.changed", "dead.committed",
    "vector_index.due", "vector_index.cleared", "vector_index.built", "vector_index.analyzed",
    "search_index.created", "search_index.swapped", "search_index.begun",
    "search_index.announced", "search_index.added", "search_index.committed",
]  # fmt: skip
"""Where work can be cut off: `x.begun` before the first statement, a past participle after what it names and before
the COMMIT, `x.committed` after it."""

POINTS: tuple[str, ...] = get_args(Point)
SIGNALS = {"": signal.SIGKILL, "stop": signal.SIGSTOP}
_ARMED = re.compile(r"(?P<point>[a-z_.]+)(:(?P<hit>[1-9]\d*)(:(?P<how>stop))?)?")


class Armed(NamedTuple):
    point: str
    hit: int
    signal: signal.Signals


def parse(text: str) -> Armed:
    """POINT, POINT:HIT or POINT:HIT:stop. Raises ValueError."""
    match = _ARMED.fullmatch(text)
    if match is None or match["point"] not in POINTS:
        raise ValueError(text)
    return Armed(match["point"], int(match["hit"] or 1), SIGNALS[match["how"] or ""])


def _pass(point: Point) -> None:
    return


reach: Callable[[Point], None] = _pass


def arm(text: str | None) -> None:
    """From now on the process ends (or stops) at that point, once. None: nothing ever happens again."""
    global reach
    if text is None:
        reach = _pass
        return
    armed, hits = parse(text), 0

    def reached(point: Point) -> None:
        nonlocal hits
        if point == armed.point:
            hits += 1
            if hits == armed.hit:
                os.kill(os.getpid(), armed.signal)

    reach = reached
