"""CocoIndex as a contestant: what its own half (`cocoindex_app`) is called with.

Its settings: as its PostgreSQL example has it (a component for each row, its embedders' batch of 64 and a larger one),
and rows put by hand into groups, a component for each, which is its best. It embeds a changed group as a whole.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import postgres
from benchmarks.environments import COCOINDEX

TABLE = "coco"
FOUND = "select id, text as sent, embedding as vector from coco"
SETTINGS = {
    "as documented, batches of 64": ("documented", 64),
    "as documented, batches of 500": ("documented", 500),
    "grouped by hand into 500s": ("grouped", 500),
    "grouped by hand into 2,000s": ("grouped", 2000),
}


def command(mode: str, group: int, url: str, directory: Path, dsn: str) -> list[str]:
    """Each call begins without a state of its own, as its table does."""
    state = str(Path(tempfile.mkdtemp(dir=directory)) / "state")
    return COCOINDEX.script("cocoindex_app", mode, postgres.uri(dsn), url, state, str(group))
