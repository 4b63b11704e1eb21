"""`instep keys`: who may use the HTTP API and the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from instep.console.command import Answer, Commands, Example
from instep.console.figures import ago
from instep.console.session import Session

if TYPE_CHECKING:
    from datetime import datetime

commands = Commands("keys", help="Keys of the HTTP API and the pages.")


@commands.leaf(
    "create",
    [
        Example("instep keys create --role reader", "For who may see and search."),
        Example("instep keys create --role reader --table packages --note shop", "Limited to a table."),
        Example("instep keys create --role administrator --json", "For a script."),
    ],
)
async def create(
    session: Session,
    role: Annotated[
        Literal["reader", "member", "operator", "administrator"],
        typer.Option("--role", help="What it may do; each includes those before it."),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME", help="Only for this table; may be given again."),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Whose it is, for the list.")] = "",
) -> Answer:
    """Make a key.

    It is shown once: only its hash is kept. A reader sees and searches, a member replays dead letters, an operator
    pauses, runs, discards, adds and removes, an administrator makes keys.
    """
    from instep.web import keys
    from instep.web.roles import Role

    async with session.app() as app, app.database.connection() as conn:
        key, secret = await keys.create(conn, Role(role), table or (), note)
    return Answer(
        {**key.as_dict(), "key": secret},
        [secret],
        after=["This is shown once. Send it as: Authorization: Bearer …"],
    )


@commands.leaf(
    "list",
    [
        Example("instep keys list", "All keys, without what opens anything."),
        Example("instep keys list --json", "The same, for a script."),
    ],
)
async def list_(session: Session) -> Answer:
    """List the keys."""
    from instep.console.terminal import grid
    from instep.web import keys

    async with session.app() as app, app.database.connection() as conn:
        found = await keys.listed(conn)
    if not found:
        return Answer({"keys": []}, ["no keys yet"], after=["Next: instep keys create --role administrator"])
    rows = [
        [
            key.id,
            key.role.value,
            ",".join(key.tables) if key.tables is not None else "all",
            _since(key.used_at),
            f"revoked {_since(key.revoked_at)}" if key.revoked_at else "",
            key.name,
        ]
        for key in found
    ]
    titles = ("key", "role", "tables", "used", "", "note")
    return Answer({"keys": [key.as_dict() for key in found]}, [grid(rows, titles=titles, folds=5)])


@commands.leaf(
    "revoke",
    [Example("instep keys revoke instep_0123456789ab", "It opens nothing any more.")],
)
async def revoke(
    session: Session, id: Annotated[str, typer.Argument(metavar="KEY", help="Its id, as `list` shows it.")]
) -> Answer:
    """Revoke a key.

    It opens nothing from now on; a server that runs notices within seconds. Safe to run again.
    """
    from instep.web import keys

    async with session.app() as app, app.database.connection() as conn:
        key = await keys.revoke(conn, id)
    return Answer(key.as_dict(), [f"{key.id} opens nothing any more"])


def _since(moment: datetime | None) -> str:
    from instep.clock import SYSTEM

    return "never" if moment is None else ago((SYSTEM.now() - moment).total_seconds())
