"""The terminal: results on stdout; notes, questions, progress and errors on stderr.

What holds (tests/unit/test_cli_terminal.py): with `json`, stdout gets exactly one object, of an error too; colour and
moving lines appear on a terminal alone, and not with NO_COLOR; a pipe gets whole lines, never cut to a width.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from instep.errors import InstepError, Refused

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPE_WIDTH = 2000  # of tables that nobody looks at: scripts cut columns themselves


class Terminal:
    """Where a command's words go. `json`: for a script; `yes`: questions are not asked; `aside`: results for people
    go to stderr too."""

    def __init__(self, *, json: bool = False, yes: bool = False, aside: bool = False) -> None:
        self.json = json
        self.yes = yes
        self.aside = aside

    @cached_property
    def out(self) -> Console:
        if self.aside:
            return self.err
        return _console(sys.stdout.isatty(), stderr=False)

    @cached_property
    def err(self) -> Console:
        return _console(sys.stderr.isatty(), stderr=True)

    @property
    def live(self) -> bool:
        """Moving lines can be shown: somebody looks at stderr."""
        return sys.stderr.isatty() and self.err.is_terminal

    def lines(self, lines: Iterable[RenderableType]) -> None:
        """Results for people: sentences and tables, on stdout."""
        for line in lines:
            self.out.print(line, soft_wrap=isinstance(line, str))

    def object(self, payload: Mapping[str, Any]) -> None:
        """The one object for a script, on stdout."""
        import orjson

        data = orjson.dumps(payload, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        sys.stdout.write(data.decode() + "\n")
        sys.stdout.flush()

    def note(self, line: RenderableType) -> None:
        """Something said by the way, on stderr."""
        self.err.print(line, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        from rich.text import Text

        self.note(Text.assemble(("warning  ", "yellow"), sentence))

    def error(self, error: InstepError) -> None:
        """What was wrong, then what to do."""
        from rich.text import Text

        self.note(Text(str(error), "red"))
        if error.hint:
            for line in error.hint.splitlines():
                self.note(Text(f"  {line}"))

    def ask(self, question: str) -> bool:
        """A question whose default is No. With `yes` it is not asked; with no terminal to ask on it is refused."""
        if self.yes:
            return True
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            raise Refused(
                f'the question "{question}" needs an answer, and there is no terminal to ask on',
                hint="give --yes to answer it with yes",
            )
        self.err.print(f"{question} \\[y/N] ", end="", markup=True)
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self.note("")
        return answer.strip().lower() in ("y", "yes")


def grid(rows: Sequence[Sequence[Any]], *, titles: Sequence[str] = (), right: Iterable[int] = (),
         folds: int | None = None) -> Table:  # fmt: skip
    """Columns without lines. `right`: the columns set at the right; `folds`: the one column that may be cut to fit."""
    from rich.table import Table

    table = Table(
        box=None,
        show_header=bool(titles),
        header_style="dim",
        pad_edge=False,
        padding=(0, 3, 0, 0),
        expand=False,
    )
    from rich.text import Text

    lines = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    columns = max([len(titles), *(len(line) for line in lines)], default=0)
    for index in range(columns):
        cells = [line[index].cell_len for line in lines if index < len(line)]
        title = titles[index] if index < len(titles) else ""
        table.add_column(
            title,
            justify="right" if index in set(right) else "left",
            min_width=None if index == folds else max([len(title), *cells], default=0),
        )
    for line in lines:
        for cell in line:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*line)
    return table


def _console(terminal: bool, *, stderr: bool) -> Console:
    from rich.console import Console

    return Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else PIPE_WIDTH
    )
