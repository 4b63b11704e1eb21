"""Names of tables and derivations, for the shell's completion. Never starts a server, and never says a word."""

from __future__ import annotations

CONNECT_SECONDS = 2


def complete_names(incomplete: str) -> list[str]:
    """Those that begin with `incomplete`; none where the database does not answer at once."""
    import psycopg

    from instep.database import embedded
    from instep.database.statements import Statements
    from instep.errors import InstepError
    from instep.settings import Settings

    try:
        settings = Settings.load()
        dsn = settings.database_url or embedded.attach(settings.data_dir)
        if dsn is None:
            return []
        statement = Statements("instep.cli", "names.sql")["names"]
        with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS) as conn:
            rows = conn.execute(statement, {"begins": incomplete}).fetchall()
    except (psycopg.Error, InstepError, OSError):
        return []  # a completion that complains would write into the user's command line
    return [row[0] for row in rows]
