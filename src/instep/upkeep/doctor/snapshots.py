"""What keeps dead rows from being removed: open transactions, prepared ones, replication slots."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from instep.database.statements import Statements, typed
from instep.upkeep.doctor.findings import Check, Finding, ago, ok, several, skipped
from instep.upkeep.doctor.look import Look

_FILE = ("instep.upkeep.doctor", "snapshots.sql")
_SQL = Statements(*_FILE)


async def snapshots(look: Look) -> list[Finding]:
    oldest, found = look.settings.old_snapshot_seconds, []
    for pid, program, user, client, state, seconds, holds in await look.rows(_SQL["sessions"], oldest=oldest):
        who = ", ".join(part for part in (program, f"user {user}", client) if part)
        harm = (
            f"keeps the last {several(holds, 'transaction')}' dead rows"
            if holds is not None
            else "keeps its locks"
        )
        statement = typed(*_FILE, "end_session", pid=sql.Literal(pid))
        found.append(Finding("warn", f"pid {pid} ({who}) is {state} for {ago(seconds)}: it {harm}", "end it", (statement,)))  # fmt: skip
    for gid, owner, seconds in await look.rows(_SQL["prepared"], oldest=oldest):
        statement = typed(*_FILE, "roll_back", gid=sql.Literal(gid))
        detail = f"the prepared transaction {gid} (user {owner}) stands for {ago(seconds)}: it keeps dead rows and its locks"
        found.append(Finding("warn", detail, "commit it, or roll it back", (statement,)))
    for name, plugin, holds in await look.rows(_SQL["slots"]):
        statement = typed(*_FILE, "drop_slot", name=sql.Literal(name))
        kind = plugin or "physical"
        detail = f"the replication slot {name} ({kind}) is used by nobody, and keeps the last {several(holds, 'transaction')}' dead rows"
        found.append(Finding("warn", detail, "drop it, if its reader is gone for good", (statement,)))
    (hidden,) = await look.row(_SQL["hidden"])
    if hidden:
        grant = typed(*_FILE, "let_see", role=sql.Identifier(look.conn.info.user))
        detail = f"what {several(hidden, 'session')} of other roles do is not shown to this role"
        found.append(skipped(detail, "let it see", grant))
    return found or ok(f"no transaction is open for {ago(oldest)} or more")


CHECKS: Sequence[Check] = (
    Check(
        "old-snapshots",
        "Dead rows that an old snapshot may still see cannot be removed: they slow every claim for as long as it is held.",
        snapshots,
        "server",
    ),
)
