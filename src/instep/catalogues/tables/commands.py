"""`instep tables`: which tables are derived from, and how."""

from __future__ import annotations

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session

app = Commands("tables", help="Your tables: add, list, show, remove.")


@app.leaf("list", [Example("instep tables list", "x")])
async def list_(session: Session) -> Answer:
    """List."""
    return Answer({})
