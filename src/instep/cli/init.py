"""`instep init` and `instep migrate`."""

from __future__ import annotations

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session

NEXT = "Next: instep tables add TABLE --text COLUMN (instep db psql reaches the database)"


def register(root: Commands) -> None:
    root.leaf(
        "init",
        [
            Example("instep init", "Start or reach the database, and make the schema instep in it."),
            Example("instep init --json", "The same, for a script."),
        ],
    )(init)
    root.leaf("migrate", [Example("instep migrate", "Bring the schema instep up to this release.")])(migrate)


async def init(session: Session) -> Answer:
    """Make the database ready.

    Makes the schema instep in it; safe to run again. Without DATABASE_URL an embedded PostgreSQL is made and started in the data directory.
    """
    return await _prepare(session, following=True)


async def migrate(session: Session) -> Answer:
    """Bring the schema instep up to this release.

    Safe to run again, and from several processes at once. `instep init` does it too.
    """
    return await _prepare(session, following=False)


async def _prepare(session: Session, *, following: bool) -> Answer:
    from instep.database.pool import examine

    async with session.app() as app, app.database.connection() as conn:
        server = await examine(conn)
        done = {
            "database": "embedded" if app.database.embedded else "server",
            "version": _version(server.version),
            "pgvector": server.pgvector,
            "migrated": list(app.migrated),
            "data_dir": str(session.settings.data_dir),
        }
    migrated = done["migrated"]
    where = f" in {done['data_dir']}" if done["database"] == "embedded" else ""
    made = f"migrated: {', '.join(map(str, migrated))}" if migrated else "the schema instep is up to date"
    return Answer(
        done,
        [f"PostgreSQL {done['version']} ({done['database']}{where}), pgvector {done['pgvector']}; {made}"],
        after=[NEXT] if following else [],
    )


def _version(number: int) -> str:
    """180006 → "18.6"."""
    return f"{number // 10000}.{number % 10000}"
