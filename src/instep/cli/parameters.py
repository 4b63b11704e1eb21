"""Parameters that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli.names import complete_names

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A table (packages) or one of its derivations (packages.embed).",
        autocompletion=complete_names,
    ),
]
OptionalName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A table (packages) or one of its derivations (packages.embed); all where none is given.",
        autocompletion=complete_names,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Tables (packages) or derivations (packages.embed); all where none is given.",
        autocompletion=complete_names,
    ),
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="The row's key; a composite one as a JSON array: '[\"de\", 4711]'; -- before a negative number.",
    ),
]
OptionalKey = Annotated[
    str | None,
    typer.Argument(metavar="KEY", help="One row's key; a composite one as a JSON array."),
]
