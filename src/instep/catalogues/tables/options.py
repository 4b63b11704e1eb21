"""What a user says of a table, and what a table's derivations are called."""

from __future__ import annotations

import re
from dataclasses import dataclass

from instep.engine.declaration import MAX_NAME
from instep.errors import Refused

CATALOGUE = "tables"
_LONGEST = MAX_NAME - len(".search")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of `instep tables add`. Empty means: not said."""

    table: str
    text: tuple[str, ...]
    name: str = ""
    where: str = ""
    newest: str = ""
    filters: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    dimensions: int = 0
    halfvec: bool = False
    splitter: str = ""
    document_prefix: str | None = None  # None: what the model is known to want
    query_prefix: str | None = None
    engine: str = "tantivy"  # or postgres; auto: by the settings


def source_name(options: TableOptions, table: str) -> str:
    """The name of the source: `--name`, or the table's as far as it can be used. Refused where it cannot."""
    if options.name:
        if not _NAME.fullmatch(options.name) or len(options.name) > _LONGEST:
            raise Refused(
                f"The name {options.name!r} cannot be used: at most {_LONGEST} of a-z, 0-9 and _, "
                "not beginning with a digit."
            )
        return options.name
    name = re.sub(r"[^a-z0-9_]+", "_", table.lower()).strip("_")
    if name[:1].isdigit():
        name = f"t_{name}"
    if not name or len(name) > _LONGEST:
        raise Refused(
            f"The table's name {table!r} makes no name for its derivations (at most {_LONGEST} of a-z, 0-9 and _).",
            hint="Give one with --name.",
        )
    return name
