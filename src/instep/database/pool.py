"""Connections to PostgreSQL: one `Database` for a process, its sessions all set alike.

What holds (tests/postgres/test_database_pool.py):

- a connection is in autocommit mode, with TimeZone UTC, DateStyle ISO and extra_float_digits 1, whatever the role,
  the database or the user's DSN says: hashes of timestamps and floats do not depend on who computes them;
- a server that cannot hold our tables is refused before any work, with what to do;
- a peer that died without a word is noticed within a minute.
"""

from __future__ import annotations

import asyncio
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

OLDEST_SERVER = 16
OLDEST_PGVECTOR = (0, 8)  # iterative scans

# The first three are reported by the server, so PgBouncer carries them from one server connection to the next.
_SESSION = b"set timezone = 'UTC'; set datestyle = 'ISO'; set application_name = 'instep'"
_SESSION_DIRECT = b"; set extra_float_digits = 1; set idle_in_transaction_session_timeout = '5min'; set intervalstyle = 'postgres'"

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

    def __init__(self, dsn: str, direct_dsn: str, *, embedded: bool, pooler: bool, size: int) -> None:
        self.dsn = dsn
        self.direct_dsn = direct_dsn  # past a pooler: migrations, CREATE INDEX CONCURRENTLY
        self.embedded = embedded
        self._pooler = pooler
        self._pool: AsyncConnectionPool[Conn] = AsyncConnectionPool(
            _with_defaults(dsn),
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
        if settings.database_url is None:
            dsn = direct = await asyncio.to_thread(embedded.start, settings.data_dir)
        else:
            dsn = settings.database_url
            direct = settings.direct_database_url or dsn
        pooler = settings.database_url is not None and settings.pooler
        database = cls(
            dsn, direct, embedded=settings.database_url is None, pooler=pooler, size=settings.pool_size
        )
        conn = await (
            _connect_embedded(settings.data_dir) if database.embedded else _connect(direct, pooler=False)
        )
        async with conn:
            await prepare_server(conn)
        await database._pool.open()
        return database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Conn]:
        """A pooled connection in autocommit mode; it goes back to the pool at the end."""
        async with self._pool.connection() as conn:
            yield conn

    async def dedicated(self) -> Conn:
        """A connection of the caller's own, to be closed by it; past a pooler, so it may hold session state."""
        conn = await _connect(self.direct_dsn, pooler=False)
        await _configure(conn, pooler=False)
        return conn

    async def close(self) -> None:
        """Close the pool's connections. The embedded server stays running (`instep db stop`)."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _configure(self, conn: Conn) -> None:
        await _configure(conn, pooler=self._pooler)


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


async def _connect(dsn: str, *, pooler: bool) -> Conn:
    try:
        return await AsyncConnection.connect(_with_defaults(dsn), **_options(pooler))
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


async def _connect_embedded(data_dir: Path) -> Conn:
    """Comes again where the server was being stopped or had just been killed when it was found running."""
    for _ in range(10):
        try:
            return await _connect(await asyncio.to_thread(embedded.start, data_dir), pooler=False)
        except Outage:
            await asyncio.sleep(0.1)
    return await _connect(await asyncio.to_thread(embedded.start, data_dir), pooler=False)


# A failed connection carries no SQLSTATE: these are the server's refusals that pass by themselves.
_PASSING = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "connection slots")


async def _configure(conn: Conn, *, pooler: bool) -> None:
    await conn.execute(_SESSION if pooler else _SESSION + _SESSION_DIRECT)
    await register_vector_async(conn)
