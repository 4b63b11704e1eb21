"""DDL on a user's table: one transaction that never makes his statements queue for long.

A statement that waits for a table's lock makes all later ones wait behind it, readers too. So each try waits for
at most `LOCK_TIMEOUT`, rolls back as a whole, and tries again after a pause in which the user's statements pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from psycopg import errors as pg

from instep.clock import SYSTEM, Clock
from instep.database.transactions import transaction
from instep.engine.ports import Conn
from instep.errors import Outage, Refused

LOCK_TIMEOUT = "lock_timeout = '1s'"
TRIES = 20
LONGEST_PAUSE = 5.0  # seconds


async def schema_change(
    conn: Conn,
    work: Callable[[], Awaitable[None]],
    what: str,
    *,
    lock_timeout: str = LOCK_TIMEOUT,
    tries: int = TRIES,
    clock: Clock = SYSTEM,
) -> float:
    """Run `work` in a transaction, again and again while locks are not to be had; `work` must be repeatable.
    Returns the seconds that tries in vain and pauses took. Raises Outage when all tries are spent, Refused
    without the rights. `what` completes the sentence "could not …"."""
    began = clock.monotonic()
    waited = 0.0
    for attempt in range(tries):
        try:
            async with transaction(conn, lock_timeout):
                await work()
            return waited
        except (pg.LockNotAvailable, pg.DeadlockDetected):
            if attempt + 1 < tries:
                await asyncio.sleep(min(LONGEST_PAUSE, 0.1 * 2**attempt) * clock.uniform(0.5, 1.0))
            waited = clock.monotonic() - began
        except pg.InsufficientPrivilege as error:
            raise Refused(
                f"No right to {what}: {str(error).splitlines()[0]}",
                hint="The table's owner can give them (grant select, trigger on the table), or run this.",
            ) from error
    raise Outage(
        f"Could not {what}: other sessions held its locks during {tries} tries in {waited:.0f} s.",
        hint="Look in pg_stat_activity for a long transaction on that table, and try again when it has ended.",
    )
