"""Migrations: plain SQL files, `NNNN_name.sql`, each run once, in order, in a transaction of its own.

Alembic keeps the account (table instep.migration: one row for the core, one for each catalogue) on the versions that
`discover` reads from file names. What holds (tests/postgres/test_database_migrations.py):

- run twice, or by several processes at the same moment, each migration happens once: every transaction begins with
  one advisory lock, and reads the account after it has it;
- an error or a cancellation in the middle leaves nothing of that migration;
- a schema that a newer release made is refused, not used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection

from instep import failpoints
from instep.database.pool import Conn, Database
from instep.errors import Outage, Refused

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext, RevisionStep
    from sqlalchemy import Connection

LOCK = int.from_bytes(b"instep")  # of pg_advisory_xact_lock
LOCK_SECONDS = (
    1.0  # how long a migration waits for a table, so that users' statements do not queue up behind it
)
LOCK_TRIES = 20
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, slots=True)
class Branch:
    """A folder of migrations: the core's (label "") or a catalogue's, its label the catalogue's name."""

    label: str
    package: str
    folder: str = "migrations"

    def revision(self, number: str) -> str:
        return f"{self.label}_{number}" if self.label else number


CORE = Branch("", "instep.database")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. `revision` and `previous` are what the table instep.migration holds: 0002, or tables_0002."""

    branch: Branch
    revision: str
    previous: str | None
    name: str
    text: str


def discover(branches: Iterable[Branch]) -> list[Migration]:
    """All migrations, branch by branch, in order. Raises ValueError where numbers do not go 0001, 0002, …"""
    found = []
    for branch in branches:
        folder = files(branch.package).joinpath(branch.folder)
        scripts = {entry.name: entry for entry in folder.iterdir() if _FILE.match(entry.name)}
        previous: str | None = None
        for expected, file in enumerate(sorted(scripts), start=1):
            number, _, name = file.removesuffix(".sql").partition("_")
            if int(number) != expected:
                raise ValueError(
                    f"{branch.package}/{branch.folder}/{file}: expected the number {expected:04}"
                )
            revision = branch.revision(number)
            found.append(
                Migration(branch, revision, previous, f"{revision}_{name}", scripts[file].read_text("utf-8"))
            )
            previous = revision
    return found


async def migrate(database: Database | str, catalogues: Sequence[Branch] = ()) -> list[str]:
    """Bring the schema `instep` to this release; gives the names of the migrations that this call ran.

    Raises Refused for a schema newer than this release and for a role that may not create, Outage where another
    session holds what a migration needs for minutes."""
    dsn = database if isinstance(database, str) else database.direct_dsn
    migrations = discover([CORE, *catalogues])
    pending = await _pending(dsn, migrations)
    if not pending:
        return []  # the rule: neither alembic nor SQLAlchemy is loaded
    runner = _Runner(dsn, migrations, pending)
    work = asyncio.get_running_loop().run_in_executor(None, runner.run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            runner.cancel()
            await asyncio.wait([work], timeout=0.05)
        work.exception()  # ours: the statement that was cancelled
        raise
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused(
            f"this role may not migrate the schema instep: {error.diag.message_primary}",
            hint="let the database's owner run `instep migrate`, or: GRANT CREATE ON DATABASE … TO …;",
        ) from error


async def unapplied(conn: Conn, catalogues: Sequence[Branch] = ()) -> list[str]:
    """The names of the migrations that are still to be run; runs none. Raises Refused for a schema newer than this
    release."""
    return [m.name for m in _missing(await _applied(conn), discover([CORE, *catalogues]))]


async def _pending(dsn: str, migrations: Sequence[Migration]) -> list[Migration]:
    async with await AsyncConnection.connect(dsn, autocommit=True) as conn:
        return _missing(await _applied(conn), migrations)


async def _applied(conn: Conn) -> set[str]:
    try:
        rows = await (await conn.execute(b"select version_num from instep.migration")).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return set()
    return {version for (version,) in rows}


def _missing(heads: set[str], migrations: Sequence[Migration]) -> list[Migration]:
    """What is still to run above `heads`. Rows of catalogues that are not asked for are left alone."""
    known = {migration.branch: migration.revision for migration in migrations}  # the last of each wins
    for branch, last in known.items():
        if _head(heads, branch) > last:
            raise Refused(
                f"the database's schema is {_head(heads, branch)}, this release knows {last}",
                hint="update instep",
            )
    return [m for m in migrations if m.revision > _head(heads, m.branch)]


def _head(heads: Iterable[str], branch: Branch) -> str:
    """How far the branch has come; "" where it has not begun. (Four digits: text sorts as numbers do.)"""
    pattern = re.compile(re.escape(branch.revision("")) + r"\d{4}")
    return max((head for head in heads if pattern.fullmatch(head)), default="")


class _Cancelled(Exception):
    """The caller was cancelled: roll back and end the thread."""


class _Runner:
    """Runs in a thread: alembic and SQLAlchemy are synchronous."""

    def __init__(self, dsn: str, migrations: Sequence[Migration], pending: Sequence[Migration]) -> None:
        self._dsn = dsn
        self._all = migrations
        self._pending = pending
        self._cancelled = Event()
        self._session: psycopg.Connection[Any] | None = None

    def cancel(self) -> None:
        """Called from the event loop, again and again until the thread has ended: one call may fall between two
        statements."""
        self._cancelled.set()
        if self._session is not None and not self._session.closed:
            self._session.cancel()

    def run(self) -> list[str]:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        # READ COMMITTED: the account must be read as it is after the lock was had, not before.
        engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
        )
        with engine.connect() as connection:
            return [m.name for m in self._pending if self._committed(connection, m)]

    def _committed(self, connection: Connection, migration: Migration) -> bool:
        ran = self._apply_patiently(connection, migration)
        failpoints.reach("migrate.committed")
        return ran

    def _connect(self) -> psycopg.Connection[Any]:
        self._session = psycopg.connect(self._dsn, application_name="instep migrate")
        return self._session

    def _apply_patiently(self, connection: Connection, migration: Migration) -> bool:
        """A migration that did not get a lock on a table in time is rolled back and comes again."""
        for attempt in range(1, LOCK_TRIES + 1):
            try:
                with connection.begin():
                    return self._apply(connection, migration)
            except Exception as error:
                cause = getattr(error, "orig", error)
                if self._cancelled.is_set():
                    raise _Cancelled from error
                if not isinstance(cause, psycopg.errors.LockNotAvailable):
                    raise cause from None
                self._cancelled.wait(min(0.2 * attempt, 2.0))
        raise Outage(
            f"the migration {migration.name} waited {LOCK_TRIES} times for a lock that another session holds",
            hint="look in pg_stat_activity for a long transaction, and run `instep migrate` again",
        )

    def _apply(self, connection: Connection, migration: Migration) -> bool:
        """True: this call ran it. False: another process had."""
        from alembic.runtime.migration import MigrationContext

        connection = connection.execution_options(no_parameters=True)  # as written: no % or : is special
        for statement in (
            "set local statement_timeout = 0",  # a role's is meant for an application
            "set local lock_timeout = '60s'",  # another process's migration may take its time
            f"select pg_advisory_xact_lock({LOCK})",
            f"set local lock_timeout = '{round(LOCK_SECONDS * 1000)}ms'",
            "create schema if not exists instep",
        ):
            connection.exec_driver_sql(statement)
        failpoints.reach("migrate.locked")

        def run() -> None:
            connection.exec_driver_sql(migration.text)

        def steps(heads: tuple[str, ...], context: MigrationContext) -> list[RevisionStep]:
            return [_step(self._all, migration, run)]

        context = MigrationContext.configure(
            connection, opts={"version_table": "migration", "version_table_schema": "instep", "fn": steps}
        )
        if _head(context.get_current_heads(), migration.branch) >= migration.revision:
            return False
        context.run_migrations()
        failpoints.reach("migrate.applied")
        if self._cancelled.is_set():
            raise _Cancelled
        return True


def _step(migrations: Sequence[Migration], migration: Migration, run: Callable[[], None]) -> RevisionStep:
    """One step of alembic's, made from file names instead of a directory of Python scripts."""
    from alembic.runtime.migration import RevisionStep
    from alembic.script.revision import Revision, RevisionMap

    revisions = RevisionMap(lambda: [Revision(m.revision, m.previous) for m in migrations])
    revision: Any = revisions.get_revision(migration.revision)
    revision.module = SimpleNamespace(upgrade=run)
    revision.doc = migration.name
    return RevisionStep(revisions, revision, is_upgrade=True)
