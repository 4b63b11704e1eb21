"""Each row of `classify` names a failure by its meaning."""

import psycopg
import pytest
from psycopg import errors as pg

from instep.engine.failures import Meaning, classify
from instep.errors import Configuration, Outage, Permanent, Refused, Retryable, SettingsError


@pytest.mark.parametrize(
    ("error", "meaning", "kind", "deterministic"),
    [
        (Outage("refused"), Meaning.BACKEND, "server error", False),
        (Configuration("401"), Meaning.SETTING, "wrong answer", True),
        (Refused("no such splitter"), Meaning.SETTING, "refused", True),
        (SettingsError("no such model"), Meaning.SETTING, "refused", True),
        (Permanent("400", kind="input refused"), Meaning.ITEM, "input refused", True),
        (Retryable("busy", kind="busy"), Meaning.ITEM, "busy", False),
        (pg.AdminShutdown("57P01"), Meaning.DATABASE, "database", False),
        (pg.DiskFull("53100"), Meaning.DATABASE, "database", False),
        (pg.ReadOnlySqlTransaction("25006"), Meaning.DATABASE, "database", False),
        (psycopg.OperationalError("connection lost"), Meaning.DATABASE, "database", False),
        (pg.DeadlockDetected("40P01"), Meaning.REPEAT, "database", False),
        (pg.SerializationFailure("40001"), Meaning.REPEAT, "database", False),
        (pg.DataCorrupted("XX001"), Meaning.ITEM, "data corruption", True),
        (pg.UndefinedColumn("42703"), Meaning.SCHEMA, "database", True),
        (pg.InsufficientPrivilege("42501"), Meaning.SCHEMA, "database", True),
        (pg.CheckViolation("23514"), Meaning.ITEM, "database", False),
        (TimeoutError("inner"), Meaning.ITEM, "timeout", False),
        (ZeroDivisionError("x"), Meaning.ITEM, "ZeroDivisionError", False),
    ],
)
def test_classify(error, meaning, kind, deterministic):
    failed = classify(error)
    assert (failed.meaning, failed.kind, failed.deterministic) == (meaning, kind, deterministic)


def test_an_error_message_with_nul_and_surrogates_can_be_stored():
    """PEERS C7 79: NUL in an error message must not kill the write that records it."""
    message = classify(Permanent("a\x00b\ud800c" * 2000)).message
    assert "\x00" not in message
    message.encode("utf-8")
    assert len(message) <= 2001
