"""One row for each kind of trouble that PostgreSQL can be in."""

from __future__ import annotations

import psycopg
import pytest
from psycopg_pool import PoolClosed, PoolTimeout

from instep.database.outages import is_corruption, is_outage, is_serialization


def error(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("said the server")


@pytest.mark.parametrize(
    ("problem", "outage"),
    [
        (error("08006"), True),  # connection failure
        (error("53100"), True),  # disk full
        (error("53200"), True),  # out of memory
        (error("53300"), True),  # too many connections
        (error("57P01"), True),  # the server is being shut down
        (error("57P03"), True),  # it is starting up
        (error("25006"), True),  # read only
        (error("25P03"), True),  # our session idled in its transaction
        (psycopg.OperationalError("connection failed"), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (PoolTimeout("couldn't get a connection"), True),
        (PoolClosed("the pool is closed"), False),  # our own mistake
        (psycopg.InterfaceError("cannot use a cursor twice"), False),
        (error("57014"), True),  # a statement was cancelled: statement_timeout
        (error("40001"), False),
        (error("55P03"), True),  # lock not available: lock_timeout
        (error("23505"), False),  # unique violation
        (error("XX001"), False),
        (psycopg.ProgrammingError("wrong"), False),
        (ConnectionResetError("not PostgreSQL's"), False),
        (ValueError("08006"), False),
    ],
)
def test_what_is_an_outage(problem: BaseException, outage: bool) -> None:
    assert is_outage(problem) is outage


def test_serialization_failures_and_deadlocks_are_repeated() -> None:
    assert [s for s in ("40001", "40P01", "40002", "08006") if is_serialization(error(s))] == [
        "40001",
        "40P01",
    ]
    assert not is_serialization(ValueError())


def test_a_row_that_cannot_be_read_is_corruption() -> None:
    assert [s for s in ("XX000", "XX001", "58030") if is_corruption(error(s))] == ["XX001"]
    assert not is_corruption(ValueError())
