"""`instep doctor`: what commonly bites, and the statement that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.upkeep.doctor.findings import Report, Result

STYLES = {"ok": "green", "warn": "yellow", "failed": "red", "skipped": "magenta"}
STATE_WIDTH = 10


def register(root: Commands) -> None:
    root.leaf(
        "doctor",
        [
            Example("instep doctor", "Every check; what is wrong comes with the statement that mends it."),
            Example("instep doctor --quiet --allow-skip disk", "For cron: only what is not well."),
            Example("instep doctor --only triggers --only old-snapshots", "Some of the checks."),
            Example("instep doctor --json", "One object for a script: ok, and each check with its state."),
        ],
    )(doctor)


async def doctor(
    session: Session,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Make this check alone; can be given several times."),
    ] = None,
    allow_skip: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-skip",
            metavar="NAME",
            help="That this check cannot be made raises no exit code; it stays listed.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show only what is not ok, skips too.")
    ] = False,
) -> Answer:
    """Check what commonly bites, and show what mends it.

    Changes nothing. Each check is ok, warn, failed or skipped; skipped means that it could not be made, which is not
    well. Exit code 0: everything was checked and is well; 1: something is not; 3: something could not be checked.
    docs/doctor.md explains each check.
    """
    from instep.upkeep.doctor.examine import doctor as examine

    settings = session.settings
    session.announce_embedded()
    report = await examine(settings, only=only or (), allow_skip=allow_skip or ())
    return Answer(report.as_dict(), list(lines(report, quiet=quiet)), report.exit_code)


def lines(report: Report, *, quiet: bool = False) -> Iterator[Any]:
    shown = [result for result in report.results if not quiet or result.finding.state != "ok"]
    width = max((len(result.name) for result in shown), default=0) + 3
    for result in shown:
        yield _line(result, width)
        yield from (f"{'':{STATE_WIDTH + width}}{line}" for line in _mend(result))
    if not quiet:
        yield _sum(report.results)


def _line(result: Result, width: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    finding = result.finding
    line = Table.grid(padding=0)
    line.add_column(width=STATE_WIDTH)
    line.add_column(width=width)
    line.add_column(overflow="fold")
    detail = finding.detail + (" (allowed)" if result.acknowledged else "")
    line.add_row(Text(finding.state, STYLES[finding.state]), result.name, Text(detail))
    return line


def _mend(result: Result) -> list[str]:
    """Whole lines, never folded: they are there to be copied."""
    finding = result.finding
    what = [] if finding.state in ("ok", "skipped") else [result.means]
    typed = [*finding.statements, *finding.commands]
    if not typed:
        return what + ([finding.do] if finding.do else [])
    if len(typed) == 1:
        return [*what, f"{finding.do}: {typed[0]}"]
    return [*what, f"{finding.do}:", *(f"  {line}" for line in typed)]


def _sum(results: Sequence[Result]) -> str:
    states = [result.finding.state for result in results]
    counted = [f"{states.count(state)} {state}" for state in STYLES if state in states]
    return " · ".join(counted)
