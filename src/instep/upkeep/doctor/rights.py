"""What instep's role may do with its own tables and with the user's."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from instep.database.statements import Statements, typed
from instep.upkeep.doctor.findings import Check, Finding, ok, several
from instep.upkeep.doctor.look import Look

_FILE = ("instep.upkeep.doctor", "rights.sql")
_SQL = Statements(*_FILE)


async def rights(look: Look) -> list[Finding]:
    role = sql.Identifier(look.conn.info.user)
    found = []
    (creates,) = await look.row(_SQL["schema"])
    if not creates:
        statement = typed(*_FILE, "grant_schema", role=role)
        found.append(
            Finding("failed", "this role may not create in the schema instep", "let it", (statement,))
        )
    for owner, number, example in await look.rows(_SQL["ours"]):
        statement = typed(*_FILE, "make_member", owner=sql.Identifier(owner), role=role)
        detail = f"{several(number, 'table')} of instep ({example}, …) belong to {owner}: this role cannot mend or drop them"
        found.append(Finding("failed", detail, "let it act for their owner", (statement,)))
    for seen in await look.sources():
        for owner, reads in await look.rows(_SQL["source"], oid=seen.source.oid):
            where = f"{seen.source.schema}.{seen.source.table}"
            what = "put triggers back" if reads else "read it or put triggers back"
            statement = typed(*_FILE, "make_member", owner=sql.Identifier(owner), role=role)
            detail = f"{where} belongs to {owner}: this role may not {what}"
            found.append(Finding("warn" if reads else "failed", detail, "let it act for the owner", (statement,)))  # fmt: skip
    return found or ok("this role may do with its tables, and with the triggers on yours, what runs need")


CHECKS: Sequence[Check] = (
    Check(
        "rights", "A run mends triggers, builds indexes and vacuums; that takes the owner's rights.", rights
    ),
)
