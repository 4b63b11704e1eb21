"""`instep db`: reach the database by other programs; stop the embedded server."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session
from instep.errors import Refused

commands = Commands("db", help="Reach the database; stop the embedded one.")


@commands.leaf(
    "url",
    [
        Example("instep db url", "The DSN alone; the embedded server is started where it must be."),
        Example('psql "$(instep db url)" -c "select 1"', "Hand it to another program."),
    ],
)
def url(session: Session) -> Answer:
    """Print the database's DSN, alone.

    Starts the embedded server where none runs.
    """
    dsn = _dsn(session)
    return Answer({"url": dsn}, [dsn])


@commands.leaf(
    "psql",
    [
        Example("instep db psql", "A prompt."),
        Example('instep db psql -c "select count(*) from packages"', "What follows is handed to psql."),
    ],
    passes_on=True,
)
def psql(session: Session) -> Answer:
    """Open psql on the database.

    The embedded server's own program; for another server the one on PATH, if there is one. What follows is handed
    to it.
    """
    _become(_psql(session), [_dsn(session), *session.rest])


@commands.leaf(
    "status",
    [Example("instep db status", "Does the embedded server run, where is it, where is its log.")],
)
def status(session: Session) -> Answer:
    """Show which database is used.

    Of the embedded server, whether it runs, where it is and where its log is. Starts nothing.
    """
    if session.settings.database_url is not None:
        from instep.settings import masked

        where = masked(session.settings.database_url)
        return Answer({"database": "server", "url": where}, [f"a server of your own: {where}"])
    from instep.database import embedded

    seen = embedded.status(session.settings.data_dir)
    payload = {
        "database": "embedded",
        "running": seen.running,
        "pid": seen.pid,
        "directory": str(seen.directory),
        "log": str(seen.log),
        "url": seen.dsn if seen.running else None,
    }
    state = (
        f"runs, process {seen.pid}" if seen.running else "does not run; any command that needs it starts it"
    )
    return Answer(
        payload,
        [f"the embedded server {state}", f"  directory  {seen.directory}", f"  log        {seen.log}"],
    )


@commands.leaf(
    "stop",
    [Example("instep db stop", "Stop the embedded server; its data stays.", needs="embedded")],
)
def stop(session: Session) -> Answer:
    """Stop the embedded server.

    Its data stays, and any command that needs it starts it again.
    """
    if session.settings.database_url is not None:
        raise Refused(
            "DATABASE_URL is set: that server is yours, and instep stops only its own embedded one",
            hint="unset DATABASE_URL to stop the embedded one",
        )
    from instep.database import embedded

    stopped = embedded.stop(session.settings.data_dir)
    directory = session.settings.data_dir
    return Answer(
        {"stopped": stopped},
        [
            f"stopped the embedded server in {directory}"
            if stopped
            else f"no embedded server runs in {directory}"
        ],
    )


def _dsn(session: Session) -> str:
    if session.settings.database_url is not None:
        return session.settings.database_url
    from instep.database import embedded

    session.announce_embedded()
    return embedded.start(session.settings.data_dir)


def _psql(session: Session) -> str:
    """The embedded server's own program, which fits it; for another server the one on PATH, if there is one."""
    from instep.database import embedded

    if session.settings.database_url is not None:
        found = shutil.which("psql")
        if found is not None:
            return found
    return str(embedded.program("psql"))


def _become(program: str, arguments: list[str]) -> NoReturn:
    """Replace this process by another program: its terminal, signals and exit code are then the user's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, [program, *arguments])  # psql looks for itself by its first argument
