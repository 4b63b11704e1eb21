"""`instep status`: how in step everything is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from instep.cli.pause import paused_line, resume_line
from instep.console.command import Answer, Commands, Example
from instep.console.figures import age, ago, count, percent
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.engine.status import Status

STYLES = {
    "in step": "green",
    "outage": "red",
    "misconfigured": "red",
    "paused": "magenta",
    "never run": "dim",
}


def register(root: Commands) -> None:
    root.leaf(
        "status",
        [
            Example("instep status", "What waits, since when, what is dead, how much is covered."),
            Example("instep status --json", "The same, for a script."),
        ],
    )(status)


async def status(session: Session) -> Answer:
    """Show how in step everything is.

    Of each derivation: its state, what waits and since when, dead letters, coverage (rows that have their output, of
    those that should), and the last run.
    """
    async with session.app() as app:
        statuses = await app.status()
        pauses = await app.paused()
    return Answer(
        {
            "derivations": [one.as_dict() for one in statuses],
            "jobs": [],
            "paused": [one.as_dict() for one in pauses],
        },
        [*lines(statuses, place(session)), *(paused_line(one) for one in pauses)],
        after=_next(statuses),
    )


def lines(statuses: Sequence[Status], database: str) -> list[Any]:
    if not statuses:
        return ["nothing is derived yet", database]
    from rich.text import Text

    from instep.console.terminal import grid

    rows = [
        [
            Text(one.name, "bold"),
            Text(one.state, STYLES.get(one.state, "yellow")),
            count(one.waiting + one.leased + one.unabsorbed),
            age(one.oldest_wait_seconds) if one.waiting else "-",
            Text(count(one.dead), "red" if one.dead else ""),
            "not counted" if one.coverage is None else percent(one.coverage),
            _last_run(one),
        ]
        for one in statuses
    ]
    titles = ("", "state", "waiting", "oldest", "dead", "coverage", "last run")
    problems = dict.fromkeys(one.problem for one in statuses if one.problem)
    return [
        grid(rows, titles=titles, right=(2, 3, 4, 5)),
        *(Text(problem, "red") for problem in problems),
        Text(database, "dim"),
    ]


def place(session: Session) -> str:
    """Where the data is, without passwords."""
    if session.settings.database_url is None:
        return f"database: embedded, in {session.settings.data_dir}"
    from instep.settings import masked

    return f"database: {masked(session.settings.database_url)}"


def _last_run(one: Status) -> str:
    run = one.last_run
    if run is None:
        return "-"
    if run.outcome == "running":
        return "running"
    detail = f": {run.detail}" if run.detail else ""
    return f"{run.outcome} {ago(run.seconds_ago)}{detail}"


def _next(statuses: Sequence[Status]) -> list[str]:
    if not statuses:
        return ["Next: instep tables add TABLE --text COLUMN"]
    waiting = sorted(
        {one.name.partition(".")[0] for one in statuses if one.state not in ("in step", "paused")}
    )
    following = [f"Next: instep run {' '.join(waiting)}"] if waiting else []
    scopes = dict.fromkeys(one.paused.scope for one in statuses if one.paused is not None)
    following += [f"To go on: {resume_line(scope)}" for scope in scopes]
    if any(one.dead for one in statuses):
        following.append("Dead letters: instep dead list")
    return following
