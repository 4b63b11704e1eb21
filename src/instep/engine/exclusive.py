"""A lease row for each output outside PostgreSQL, so that it has one drainer at a time."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from instep import failpoints
from instep.database.statements import Statements
from instep.engine.ports import Conn
from instep.errors import InstepError

LEASE_SECONDS = 60.0

_SQL = Statements("instep.engine", "exclusive.sql")


class HeldElsewhere(InstepError):
    """Another worker drains this output now: say who, and go on with other derivations."""


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Held until released, or for LEASE_SECONDS after the last renewal."""

    name: str
    token: int

    async def renew(self, conn: Conn) -> bool:
        """False: it was lost to another worker."""
        values = {"name": self.name, "token": self.token, "lease": LEASE_SECONDS}
        return await (await conn.execute(_SQL["renew"], values)).fetchone() is not None

    async def release(self, conn: Conn) -> None:
        await conn.execute(_SQL["release"], {"name": self.name, "token": self.token})
        failpoints.reach("exclusive.released")


async def acquire(conn: Conn, name: str, token: int) -> Exclusive:
    """`token` is random and this holder's own: one whose connection broke takes up again what it held under the same
    token. Raises HeldElsewhere, naming the holder."""
    values = {"name": name, "holder": holder(), "token": token, "lease": LEASE_SECONDS}
    if await (await conn.execute(_SQL["acquire"], values)).fetchone() is not None:
        failpoints.reach("exclusive.acquired")
        return Exclusive(name, token)
    row = await (await conn.execute(_SQL["holder"], {"name": name})).fetchone()
    who, seconds = row if row else ("a worker that has just ended", 0.0)
    raise HeldElsewhere(
        f"{name} is being drained by {who}", hint=f"its lease runs out in {seconds:.0f} s unless it goes on"
    )


def holder() -> str:
    return f"{socket.gethostname()} pid {os.getpid()}"
