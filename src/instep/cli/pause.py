"""`instep pause`, `instep resume`: workers start no new wave for a while."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from instep.cli.parameters import OptionalName
from instep.console.command import Answer, Commands, Example
from instep.console.session import Session
from instep.errors import Refused

if TYPE_CHECKING:
    from instep.engine.pause import Pause

_LENGTH = re.compile(r"(\d+)\s*(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def register(root: Commands) -> None:
    root.leaf(
        "pause",
        [
            Example(
                'instep pause --reason "the database is moved" --until 2h', "Start nothing new for two hours."
            ),
            Example('instep pause packages.embed --reason "the model is changed"', "Of one derivation."),
            Example('instep pause packages --reason "load" --json', "For a script."),
        ],
    )(pause)
    root.leaf(
        "resume",
        [
            Example("instep resume", "Lift every pause."),
            Example("instep resume packages.embed", "Lift the pause of one derivation."),
        ],
    )(resume)


async def pause(
    session: Session,
    reason: Annotated[
        str, typer.Option("--reason", metavar="REASON", help="Shown wherever the pause is shown.")
    ],
    name: OptionalName = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="WHEN", help='How long (30m, 2h, 1d) or a moment ("2026-08-01 06:00").'
        ),
    ] = None,
) -> Answer:
    """Let workers start no new work.

    Every worker, running or to come, finishes the wave in hand and starts no other; changes are still noticed, and wait.
    It ends by `instep resume`, or by itself with --until. A pause of the same name takes the place of one before.
    """
    end = parse_until(until) if until is not None else None
    async with session.app() as app:
        made = await app.pause(name, reason=reason, until=end)
    return Answer(made.as_dict(), [paused_line(made)], after=[f"To go on: {resume_line(made.scope)}"])


async def resume(session: Session, name: OptionalName = None) -> Answer:
    """Let workers go on after a pause.

    Lifts the pause of that name, or every one.
    """
    async with session.app() as app:
        lifted = await app.resume(name)
    told = [f"{_scope(one)}: goes on ({one.reason})" for one in lifted]
    return Answer({"resumed": [one.as_dict() for one in lifted]}, told or ["nothing was paused"])


def parse_until(text: str) -> datetime | timedelta:
    """A length (30m) or a moment, by this machine's time zone where it names none. Raises Refused."""
    length = _LENGTH.fullmatch(text.strip())
    if length is not None:
        return timedelta(**{_UNITS[length[2]]: int(length[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        raise Refused(
            f"--until {text!r} is no time", hint='give 30m, 2h, 1d, or a moment: "2026-08-01 06:00"'
        ) from None


def paused_line(one: Pause) -> str:
    return f"paused: {_scope(one)}: {one}"


def resume_line(scope: str) -> str:
    return f"instep resume {scope}".rstrip()


def _scope(one: Pause) -> str:
    return one.scope or "everything"
