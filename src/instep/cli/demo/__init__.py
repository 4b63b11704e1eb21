"""`instep demo`: the whole of it on real text, in a directory of its own, with every claim checked.

records.py   where the text comes from
table.py     an ordinary table, loaded by COPY, changed by plain SQL as anybody's program would
story.py     what is shown, in order; each `$ instep …` line is the command itself
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session

DIRECTORY = ".instep-demo"


def register(root: Commands) -> None:
    root.leaf(
        "demo",
        [
            Example("instep demo", "Everything on real text, in about three minutes.", needs="embedded"),
            Example("instep demo --rows 200", "The same on fewer rows, in less time.", needs="embedded"),
        ],
    )(demo)


def demo(
    session: Session,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=50, help="Rows to load; else DEMO_ROWS, else what takes two minutes."),
    ] = None,
) -> Answer:
    """Show everything on real text.

    In a directory of its own (.instep-demo here, or --data-dir) with an embedded PostgreSQL: loads real text into an
    ordinary table, adds the table, runs, searches, changes rows by plain SQL, runs again, and checks that only those
    were worked and that nothing stale is found. Exit code 1 if anything is not as it says. Safe to run again.
    """
    from instep.cli.demo.story import tell

    given = session.flags.get("data_dir")
    settings = session.settings.model_copy(
        update={
            "data_dir": Path(given if given is not None else DIRECTORY).expanduser().resolve(),
            "database_url": None,  # never a database of yours
            "direct_database_url": None,
            "embed_provider": "minilm",
            "embed_model": None,
            "search_engine": "auto",
        }
    )
    return tell(session.terminal, settings, rows or settings.demo_rows)
