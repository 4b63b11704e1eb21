"""What an error of PostgreSQL means: the four questions that the engine's failure table asks (ENGINE.md)."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed

_OUTAGE_CLASSES = ("08", "53", "57P")  # connection, resources (disk, memory, slots), shutdown and restart
_OUTAGE_STATES = (
    "57014",  # a statement was cancelled: by statement_timeout or a person; in a wave's stage, its budget (wave.py)
    "55P03",  # no lock within lock_timeout: somebody else's
    "25006",  # read only: a standby after a failover, or a full disk's guard
    "25P03",  # our session was ended for idling in a transaction: this process stalled, no item is to blame
    "25P04",  # likewise for the length of a transaction
)


def is_outage(error: BaseException) -> bool:
    """PostgreSQL is in trouble or out of reach: nothing is counted against an item, and nothing is halved."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_OUTAGE_CLASSES) or error.sqlstate in _OUTAGE_STATES
    if isinstance(
        error, psycopg.OperationalError
    ):  # no word from the server: the connection broke or never was
        return not isinstance(error, PoolClosed)
    return isinstance(error, psycopg.InterfaceError) and "closed" in str(error)


def is_serialization(error: BaseException) -> bool:
    """A serialization failure or a deadlock: the whole transaction is repeated."""
    return isinstance(error, psycopg.Error) and error.sqlstate in ("40001", "40P01")


def is_corruption(error: BaseException) -> bool:
    """A row that cannot be read: a dead letter at once."""
    return isinstance(error, psycopg.Error) and error.sqlstate == "XX001"


def is_schema(error: BaseException) -> bool:
    """A table or column that is not there (any more), or a missing right: nobody's item is to blame."""
    return isinstance(error, psycopg.Error) and error.sqlstate is not None and error.sqlstate.startswith("42")
