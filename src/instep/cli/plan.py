"""`instep plan`: what a run would do."""

from __future__ import annotations

from instep.cli.parameters import Name
from instep.console.command import Answer, Commands, Example
from instep.console.figures import count, duration, size
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "plan",
        [
            Example(
                "instep plan packages.embed", "What waits, how long it will take, what it will take on disk."
            ),
            Example("instep plan packages.embed --json", "The same, for a script."),
        ],
    )(plan)


async def plan(session: Session, name: Name) -> Answer:
    """Say what a run would do.

    Rows, chunks, tokens, time and disk of one derivation. Changes nothing.
    """
    async with session.app() as app:
        told = await app.plan(name)
    width = max(map(len, told), default=0)
    lines = [
        f"  {title:<{width}}  {_words(title, value)}" for title, value in told.items() if title != "name"
    ]
    return Answer(told, [str(told.get("name", name)), *lines], after=[f"Next: instep run {name}"])


def _words(title: str, value: object) -> str:
    if title.endswith("seconds") and isinstance(value, int | float):
        return f"about {duration(value)}"
    if title.endswith("bytes") and isinstance(value, int):
        return size(value)
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
