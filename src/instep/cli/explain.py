"""`instep explain`: the whole story of one row."""

from __future__ import annotations

from instep.cli.parameters import Key, Name
from instep.console.command import Answer, Commands, Example
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "explain",
        [
            Example("instep explain packages.embed gnuchess", "Why this row is as it is, and what happens next."),
            Example("instep explain packages.search gnuchess --json", "The same of its search document, for a script."),
        ],
    )(explain)  # fmt: skip


async def explain(session: Session, name: Name, key: Key) -> Answer:
    """Tell the whole story of one row.

    Eligible or not and why, its hash, what its output was made from, its entry in the outbox, its errors, its
    outputs, and what happens next.
    """
    async with session.app() as app:
        explanation = await app.explain(name, key)
    return Answer(explanation.as_dict(), list(explanation.lines()))
