"""Keys of the HTTP API: made at random, shown once, kept as a hash.

A key has 256 random bits, so a plain SHA-256 of it cannot be searched for. Its first part, `instep_xxxxxxxx`, is its
id: it is shown in lists and logs, and opens nothing. Tests: postgres/test_server_keys.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from instep.database.statements import Statements
from instep.engine.declared import source_names
from instep.engine.ports import Conn
from instep.engine.relations import near
from instep.errors import Refused, Unknown
from instep.web.roles import KEY_ROLES, Caller, Role

_SQL = Statements("instep.web", "keys.sql")
_ID_BYTES, _SECRET_BYTES = 6, 32
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    name: str
    role: Role
    tables: tuple[str, ...] | None
    created_at: datetime
    used_at: datetime | None  # to the nearest minute or so
    revoked_at: datetime | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "role": self.role.value,
            "tables": None if self.tables is None else list(self.tables),
            "created_at": self.created_at.isoformat(),
            "used_at": self.used_at and self.used_at.isoformat(),
            "revoked_at": self.revoked_at and self.revoked_at.isoformat(),
        }


async def create(conn: Conn, role: Role, tables: Sequence[str] = (), name: str = "") -> tuple[Key, str]:
    """A new key, and what its holder sends: it cannot be shown again. Raises Refused for a role that keys do not have
    and for a table that is not there."""
    if role not in KEY_ROLES:
        raise Refused(f"a key has one of the roles {', '.join(KEY_ROLES)}")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise Refused(f"a key's name has at most {_LONGEST_NAME} characters, all of them printable")
    known = await source_names(conn)
    for table in tables:
        if table not in known:
            raise Unknown(f"There is no table {table!r} here.", hint=near(table, known, "tables"))
    id = "instep_" + secrets.token_hex(_ID_BYTES)
    secret = f"{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    values = {
        "id": id,
        "hash": digest(secret),
        "name": name,
        "role": role.value,
        "tables": sorted(set(tables)) or None,
    }
    row = await (await conn.execute(_SQL["create"], values)).fetchone()
    assert row is not None
    return _key(*row), secret


async def listed(conn: Conn) -> list[Key]:
    """All keys, revoked ones too, the newest first."""
    return [_key(*row) for row in await (await conn.execute(_SQL["listed"], {})).fetchall()]


async def revoke(conn: Conn, id: str) -> Key:
    """From now on the key opens nothing (other processes notice within `guard.REMEMBERED_SECONDS`). Again: no change."""
    row = await (await conn.execute(_SQL["revoke"], {"id": id})).fetchone()
    if row is None:
        known = [key.id for key in await listed(conn)]
        raise Unknown(f"There is no key {id!r}.", hint=near(id, known, "keys") or "instep keys list")
    return _key(*row)


async def any_key(conn: Conn) -> bool:
    """Whether there is a key that opens something."""
    row = await (await conn.execute(_SQL["any_key"], {})).fetchone()
    return bool(row and row[0])


async def caller(conn: Conn, secret: str) -> Caller | None:
    """Whose key this is; None where it opens nothing."""
    row = await (await conn.execute(_SQL["caller"], {"hash": digest(secret)})).fetchone()
    if row is None:
        return None
    id, name, role, tables = row
    return Caller(id, name, Role(role), None if tables is None else frozenset(tables))


def digest(secret: str) -> bytes:
    """What is kept of a key."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _key(id: str, name: str, role: str, tables: list[str] | None, *times: Any) -> Key:
    return Key(id, name, Role(role), None if tables is None else tuple(tables), *times)
