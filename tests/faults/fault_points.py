"""Which fail point is reached by which scene. test_failpoints.py holds this against the calls in the code."""

from __future__ import annotations

CHANGED = (
    "run.started",
    "absorb.begun", "absorb.taken", "absorb.committed",
    "sweep.begun", "sweep.bounded", "sweep.enqueued", "sweep.committed", "sweep.ended",
    "claim.let_in", "claim.begun", "claim.taken", "claim.committed", "claim.suspect", "claim.buried",
    "load.begun", "load.stamps", "load.loaded",
    "compute.begun", "compute.done",
    "commit.begun", "commit.fenced", "commit.written", "commit.stamped", "commit.finished", "commit.committed",
    "run.finished",
)  # fmt: skip
"""On the way of rows that were written."""

RENEWED = (
    "renew.begun",
    "renew.changed",
    "renew.committed",
)  # the model takes longer than a quarter of the lease
RELEASED = ("release.begun", "release.changed", "release.committed")  # SIGTERM while the model works
PARKED = ("park.begun", "park.changed", "park.committed")  # the model takes longer than the budget
FAILED = ("fail.begun", "fail.locked", "fail.recorded", "fail.committed")  # the model refuses a text
UNREADABLE = ("sweep.buried",)  # the condition fails on a row
MENDED = ("verify.mended", "verify.committed")  # a trigger was disabled
ADDED = (
    "install.locked", "install.tables", "install.captured", "install.committed", "add.prepared", "add.committed",
)  # fmt: skip
REMOVED = ("remove.outputs", "remove.retired", "remove.dropped", "remove.committed")
MIGRATED = ("migrate.locked", "migrate.applied", "migrate.committed")
REPLAYED = ("dead.locked", "dead.changed", "dead.committed")  # and discarded
VECTOR_INDEX = (
    "vector_index.due", "vector_index.cleared", "vector_index.built", "vector_index.analyzed",
)  # fmt: skip
SEARCH_INDEX = (
    "exclusive.acquired", "search_index.announced", "search_index.added", "search_index.committed",
    "exclusive.released",
)  # fmt: skip
"""Of an index outside PostgreSQL, when rows were written."""
SEARCH_INDEX_ANEW = ("search_index.swapped", "search_index.created", "search_index.begun")
"""When the index is not the one that the database knows."""

SCENES: dict[str, tuple[str, ...]] = {
    name: value for name, value in globals().items() if name.isupper() and isinstance(value, tuple)
}

UNTERMINATED = {
    "UNREADABLE": "holds no entry: it buries in the sweep's transaction; the sweep's other points are in CHANGED",
    "MENDED": "holds no entry: triggers are put back in a transaction",
    "ADDED": "holds no entry: a person's command, which can be given again",
    "REMOVED": "holds no entry: a person's command, which can be given again",
    "MIGRATED": "holds no entry: a person's command, which can be given again",
    "REPLAYED": "holds no entry: a person's command, which can be given again",
    "VECTOR_INDEX": "holds no entry: the next run builds it",
    "SEARCH_INDEX_ANEW": "holds what it holds at SEARCH_INDEX, and gives it back as there",
}
"""Scenes without a SIGTERM in test_shutdown.py, and why."""
