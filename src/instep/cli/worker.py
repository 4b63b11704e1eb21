"""`instep worker`: for cron, a systemd timer, or as a service with --follow."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.cli import run
from instep.cli.parameters import Names
from instep.console.command import Answer, Commands, Example
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "worker",
        [
            Example("instep worker", "Work everything once and end: for cron or a systemd timer."),
            Example(
                "instep worker --follow", "Stay, and work changes as they come: as a service.", stays=True
            ),
            Example("instep worker --follow packages", "Stay for one table.", stays=True),
        ],
    )(worker)


async def worker(
    session: Session,
    names: Names = None,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and work changes as they come.")] = False,
) -> Answer:
    """Work everything once, or stay with --follow.

    Writes a line for each wave and each idle minute to stderr. SIGINT finishes the wave in hand; SIGTERM gives
    everything back at once; a second signal ends the process. An outage of a backend is waited for with --follow.
    """
    reports, seen = await run.work(session, names or [], follow=follow, lines=follow)
    return Answer(
        run.payload((), reports),
        list(run.summary(reports)),
        exit_code=max((report.exit_code for report in reports), default=0),
        after=list(run.following(reports, seen)),
    )
