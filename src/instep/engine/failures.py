"""What went wrong, and whose fault it is: the failure table of ENGINE.md as one function.

`classify` names a failure by its meaning; nothing else in the engine looks at exception classes. Each row of
`classify` has a test in tests/unit/test_failures.py, and each row of the design's table one over real HTTP in
tests/postgres/test_failure_table.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import psycopg

from instep.database.outages import is_corruption, is_outage, is_schema, is_serialization
from instep.errors import Configuration, Outage, Permanent, Refused, Retryable
from instep.text.clean import printable_error


class Meaning(Enum):
    ITEM = "item"  # this item's fault, as far as one can tell: halve, and count it when it fails alone
    BACKEND = "backend"  # an outage, if the probe fails too; else the item's
    SETTING = "setting"  # a configuration error, if the probe fails too; else the item's
    DATABASE = "database"  # PostgreSQL in trouble: an outage, no probe, no halving
    SCHEMA = "schema"  # a table, a column or a right is gone: a configuration error, no probe, no halving
    REPEAT = "repeat"  # serialization or deadlock: the same again


@dataclass(frozen=True, slots=True)
class Failed:
    meaning: Meaning
    kind: str  # of the dead letter, should it become one
    message: str
    deterministic: bool  # fails the same way each time: dead after one try alone
    retry_after: float | None = None


class Stopped(Exception):
    """The run must stop: an outage or a configuration error. Nothing is counted."""

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason  # "outage" | "configuration"
        self.retry_after = retry_after


def classify(error: BaseException) -> Failed:
    """What `error` means for the wave in which it was raised."""
    message = describe(error)
    match error:
        case Outage():
            return Failed(Meaning.BACKEND, "server error", message, False, error.retry_after)
        case Configuration():
            return Failed(Meaning.SETTING, "wrong answer", message, True)
        case Refused():  # settings that do not fit what a target was made with, say
            return Failed(Meaning.SETTING, "refused", message, True)
        case Permanent():
            return Failed(Meaning.ITEM, error.kind, message, True)
        case Retryable():
            return Failed(Meaning.ITEM, error.kind, message, False)
        case psycopg.Error() if is_outage(error):
            return Failed(Meaning.DATABASE, "database", message, False)
        case psycopg.Error() if is_schema(error):
            return Failed(Meaning.SCHEMA, "database", message, True)
        case psycopg.Error() if is_serialization(error):
            return Failed(Meaning.REPEAT, "database", message, False)
        case psycopg.Error() if is_corruption(error):
            return Failed(Meaning.ITEM, "data corruption", message, True)
        case psycopg.Error():
            return Failed(Meaning.ITEM, "database", message, False)
        case TimeoutError():
            return Failed(Meaning.ITEM, "timeout", message, False)
    return Failed(Meaning.ITEM, type(error).__name__, message, False)


def describe(error: BaseException, limit: int = 2000) -> str:
    """The error's words for people and for the database: one gate against NUL and odd characters, bounded."""
    told = str(error) or type(error).__name__
    if isinstance(error, Configuration) and error.setting and error.setting not in told:
        told = f"{told} (mend {error.setting})"
    return printable_error(told, limit)
