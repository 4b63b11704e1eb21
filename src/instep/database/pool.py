"""Connections to PostgreSQL: one `Database` for a process, its sessions all set alike.

What holds (tests/postgres/test_database_pool.py):

- a connection is in autocommit mode, with TimeZone UTC, DateStyle ISO and extra_float_digits 1, whatever the role,
  the database or the user's DSN says: hashes of timestamps and floats do not depend on who computes them;
- a server that cannot hold our tables is refused before any work, with what to do;
- a peer that died without a word is noticed within a minute; one that goes on acknowledging and says nothing, within
  database_timeout_seconds (tests/faults/test_black_hole.py);
- behind a pooler in transaction mode, which is found out, nothing depends on a session (tests/faults/test_pgbouncer.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from instep.database import embedded
from instep.errors import Outage, Refused, SettingsError

if TYPE_CHECKING:
    from instep.settings import Settings

Conn = AsyncConnection[TupleRow]

CANCEL_SECONDS = 3.0  # for the server to take the request; psycopg then waits 5 s for the statement's end


class Session(AsyncConnection[TupleRow]):
    """A connection on which no answer is waited for longer than `answer_seconds` (None: for ever).

    A statement that takes longer is cancelled on the server, as at a cancellation from outside. Where the cancellation
    cannot be sent or changes nothing, the connection is closed: psycopg#1371."""

    answer_seconds: float | None = None
    pooled = False  # behind a pooler: nothing of a session may be relied on

    async def cancel_safe(self, *, timeout: float = CANCEL_SECONDS) -> None:
        """As psycopg's, which it calls itself; but what cannot even be asked is not waited for any more."""
        try:
            await super().cancel_safe(timeout=min(timeout, CANCEL_SECONDS))
        except psycopg.Error:
            self.pgconn.finish()
            raise

    async def wait(self, *args: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(self.answer_seconds) as deadline:
                return await super().wait(*args, **options)
        except TimeoutError as error:
            if deadline.expired():
                raise psycopg.OperationalError(
                    f"PostgreSQL gave no answer within {self.answer_seconds:g} s"
                ) from error
            raise


logging.getLogger("psycopg").addHandler(
    logging.NullHandler()
)  # what it warns of is raised, and told in our words

OLDEST_SERVER = 16
OLDEST_PGVECTOR = (0, 8)  # iterative scans

# These are reported by the server, so PgBouncer carries them from one server connection to the next.
_SESSION = b"set timezone = 'UTC'; set datestyle = 'ISO'; set application_name = 'instep'"
# A role's own time limits are meant for an application's statements: ours have database_timeout_seconds.
_SESSION_DIRECT = b"""; set extra_float_digits = 1; set intervalstyle = 'postgres'; set statement_timeout = 0; set lock_timeout = 0;
set idle_in_transaction_session_timeout = '5min';
select set_config(name, '0', false) from unnest(array['transaction_timeout', 'idle_session_timeout']) name
where current_setting(name, true) is not null"""

# What a session behind a pooler cannot pin, and hashes depend on.
_EXAMINE_POOLER = b"""
select pg_backend_pid(), current_setting('extra_float_digits')::integer > 0, current_setting('intervalstyle') = 'postgres', current_database()
"""

_CONNECTION_DEFAULTS: dict[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # milliseconds that sent data may stay unacknowledged
}

_EXAMINE = """
select current_setting('server_version_num')::integer,
       current_setting('server_encoding'),
       (select default_version from pg_available_extensions where name = 'vector'),
       e.extversion,
       n.nspname,
       to_regtype('vector') is not null,
       current_database()
from (select) one
left join pg_extension e on e.extname = 'vector'
left join pg_namespace n on n.oid = e.extnamespace
"""


@dataclass(frozen=True, slots=True)
class Server:
    """What was seen of the server when the database was opened."""

    version: int  # as in server_version_num: 180006
    encoding: str
    pgvector_available: str | None
    pgvector: str | None
    pgvector_schema: str | None
    pgvector_found: bool  # its types are on the search path
    database: str


class Database:
    """A pool of connections. Made by `open`, ended by `close` (or `async with`)."""

    def __init__(
        self, dsn: str, direct_dsn: str, *, embedded: bool, pooler: bool, size: int, answer_seconds: float | None
    ) -> None:  # fmt: skip
        self.dsn = dsn
        self.direct_dsn = direct_dsn  # past a pooler: migrations, CREATE INDEX CONCURRENTLY
        self.embedded = embedded
        self.pooler = pooler  # `dsn` leads through one
        self._answer_seconds = answer_seconds
        self._pool: AsyncConnectionPool[Session] = AsyncConnectionPool(
            _with_defaults(dsn),
            connection_class=Session,
            kwargs=_options(pooler),
            min_size=0,
            max_size=size,
            open=False,
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,  # a server that restarted costs no request
            name="instep",
        )

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Connect by `settings`: to database_url, else to the embedded server, which is started where needed.

        Makes the extension vector where it is missing. Raises Refused for a server that cannot serve, SettingsError
        for a DSN that cannot be read, Outage where none answers."""
        own = settings.database_url is None
        answer_seconds = settings.database_timeout_seconds or None
        if settings.database_url is None:
            dsn = direct = await asyncio.to_thread(embedded.start, settings.data_dir)
            conn = await _connect_embedded(settings.data_dir)
        else:
            dsn = settings.database_url
            direct = settings.direct_database_url or dsn
            conn = await _connect(direct, pooler=True)
        conn.answer_seconds = answer_seconds
        async with conn:
            pooler = not own and (settings.pooler or await is_pooled(conn))
            await _pin(conn, pooler=pooler)
            await prepare_server(conn)
        if dsn != direct or pooler:
            async with await _connect(dsn, pooler=True) as conn:
                conn.answer_seconds = answer_seconds
                pooler = pooler or await is_pooled(conn)
                if pooler:
                    await refuse_pooler(conn)
        database = cls(
            dsn, direct, embedded=own, pooler=pooler, size=settings.pool_size, answer_seconds=answer_seconds
        )
        await database._pool.open()
        return database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Conn]:
        """A pooled connection in autocommit mode; it goes back to the pool at the end."""
        async with self._pool.connection() as conn:
            yield conn

    async def dedicated(self) -> Conn:
        """A connection of the caller's own, to be closed by it. It may lead through a pooler: nothing of it outlasts a
        transaction."""
        conn = await _connect(self.dsn, pooler=self.pooler)
        try:
            await self._configure(conn)
        except BaseException:  # cancelled, say
            await conn.close()
            raise
        return conn

    async def direct(self) -> Conn:
        """A connection of the caller's own, to be closed by it; past a pooler where direct_database_url is set. A
        statement on it takes as long as it takes: an index build."""
        conn = await _connect(self.direct_dsn, pooler=False)
        try:
            conn.answer_seconds = self._answer_seconds
            await _configure(conn, pooler=self.pooler and self.direct_dsn == self.dsn)
        except BaseException:  # cancelled, say
            await conn.close()
            raise
        conn.answer_seconds = None
        return conn

    async def close(self) -> None:
        """Close the pool's connections. The embedded server stays running (`instep db stop`)."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _configure(self, conn: Session) -> None:
        conn.answer_seconds = self._answer_seconds
        await _configure(conn, pooler=self.pooler)


async def prepare_server(conn: Conn) -> None:
    """Refuse a server that cannot hold our tables, and make the extension vector where it is missing."""
    server = await examine(conn)
    refuse_server(server)
    if server.pgvector is None:
        try:
            await conn.execute(b"create extension if not exists vector")
        except psycopg.errors.UniqueViolation:
            pass  # another process made it at this moment: that is what was wanted
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported) as error:
            raise Refused(
                f"the database {server.database} has no pgvector, and this role may not add it ({error.diag.message_primary})",
                hint="let its owner or an administrator run there: CREATE EXTENSION vector;",
            ) from error
        refuse_server(await examine(conn))


async def examine(conn: Conn) -> Server:
    """What the checks need to know of the server, in one round trip."""
    row = await (await conn.execute(_EXAMINE)).fetchone()
    assert row is not None
    return Server(*row)


async def is_pooled(conn: Conn) -> bool:
    """Whether a pooler answers: it makes up the process id that it gives its clients."""
    row = await (await conn.execute(_EXAMINE_POOLER)).fetchone()
    assert row is not None
    return bool(row[0] != conn.info.backend_pid)


async def refuse_pooler(conn: Conn) -> None:
    """Raise Refused where the server's own settings would make hashes other than those of a session of ours."""
    row = await (await conn.execute(_EXAMINE_POOLER)).fetchone()
    assert row is not None
    for right, setting in zip(
        row[1:3], ("extra_float_digits = 1", "intervalstyle = 'postgres'"), strict=True
    ):
        if not right:
            raise Refused(
                f"{setting.split()[0]} of the database {row[3]} is not as content hashes need it, and behind a pooler no "
                "session can set it",
                hint=f"run: ALTER DATABASE … SET {setting}; (or for the role), and RECONNECT in the pooler",
            )


def refuse_server(server: Server) -> None:
    """Raise Refused, with what to do, for a server too old, of another encoding, or without a usable pgvector."""
    if server.version // 10000 < OLDEST_SERVER:
        raise Refused(
            f"the server is PostgreSQL {server.version // 10000}; instep needs {OLDEST_SERVER} or newer",
            hint="upgrade the server, or leave DATABASE_URL unset to use the embedded one",
        )
    if server.encoding != "UTF8":
        raise Refused(
            f"the database {server.database} is encoded in {server.encoding}; instep needs UTF8",
            hint="use a database made with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )
    oldest = ".".join(map(str, OLDEST_PGVECTOR))
    if server.pgvector is None:
        if server.pgvector_available is None:
            raise Refused(
                "this PostgreSQL server has no pgvector",
                hint=f"install pgvector {oldest} or newer on the server (Debian: postgresql-{server.version // 10000}-pgvector), "
                "or leave DATABASE_URL unset to use the embedded server, which has it",
            )
        if _version(server.pgvector_available) < OLDEST_PGVECTOR:
            raise Refused(
                f"this PostgreSQL server offers pgvector {server.pgvector_available}; instep needs {oldest} or newer",
                hint="upgrade the server's pgvector package",
            )
        return
    if _version(server.pgvector) < OLDEST_PGVECTOR:
        newer = (
            server.pgvector_available is not None and _version(server.pgvector_available) >= OLDEST_PGVECTOR
        )
        raise Refused(
            f"the database {server.database} has pgvector {server.pgvector}; instep needs {oldest} or newer",
            hint="run there: ALTER EXTENSION vector UPDATE;"
            if newer
            else "upgrade the server's pgvector package, then run: ALTER EXTENSION vector UPDATE;",
        )
    if not server.pgvector_found:
        raise Refused(
            f"pgvector stands in the schema {server.pgvector_schema}, which is not on this role's search_path",
            hint=f"run: ALTER DATABASE … SET search_path = public, {server.pgvector_schema};",
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _with_defaults(dsn: str) -> str:
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # its text may hold the password
        raise SettingsError(
            "DATABASE_URL is not a connection string",
            hint="it takes postgresql://user:password@host:5432/database",
        ) from None
    missing: dict[str, Any] = {
        name: value for name, value in _CONNECTION_DEFAULTS.items() if name not in given
    }
    return make_conninfo(dsn, **missing)


def _options(pooler: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"autocommit": True}
    if pooler:
        options["prepare_threshold"] = None  # a prepared statement stays behind on another server connection
    return options


async def _connect(dsn: str, *, pooler: bool) -> Session:
    try:
        conn = await Session.connect(_with_defaults(dsn), **_options(pooler))
    except psycopg.OperationalError as error:
        said = str(error).strip()
        if "FATAL:" in said and not any(word in said for word in _PASSING):
            raise Refused(
                f"PostgreSQL refuses the connection: {said}",
                hint="mend DATABASE_URL (instep config shows it)",
            ) from error
        raise Outage(
            f"PostgreSQL does not answer: {said}", hint="is the server running, and DATABASE_URL right?"
        ) from error
    return conn


async def _connect_embedded(data_dir: Path) -> Session:
    """Comes again where the server was being stopped or had just been killed when it was found running."""
    for _ in range(10):
        try:
            return await _connect(await asyncio.to_thread(embedded.start, data_dir), pooler=False)
        except Outage:
            await asyncio.sleep(0.1)
    return await _connect(await asyncio.to_thread(embedded.start, data_dir), pooler=False)


# A failed connection carries no SQLSTATE: these are the server's refusals that pass by themselves.
_PASSING = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "connection slots")


async def _configure(conn: Session, *, pooler: bool) -> None:
    await _pin(conn, pooler=pooler)
    await register_vector_async(conn)


async def _pin(conn: Session, *, pooler: bool) -> None:
    conn.pooled = pooler
    await conn.execute(_SESSION if pooler else _SESSION + _SESSION_DIRECT)
