"""Which conditions are taken: those that PostgreSQL would take for an index.

A row's eligibility may then only change by a write to that row, which capture sees. `now()`, `random()` and subqueries
would change it behind our back (test_tables_conditions.py has the refusals, each with its sentence).
"""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from instep.database.statements import Statements, fragment
from instep.engine.declaration import quoted
from instep.engine.ports import Conn
from instep.engine.relations import Relation, near
from instep.errors import Outage, Refused

_PACKAGE, _FILE = "instep.catalogues.tables", "conditions.sql"
_CALLED = re.compile(r"([A-Za-z_][A-Za-z0-9_$]*)\s*\(")
_KEYWORDS = re.compile(
    r"\b(current_date|current_time|current_timestamp|localtime|localtimestamp|current_user|session_user)\b",
    re.I,
)
_MOMENT = re.compile(r"'\s*(now|today|tomorrow|yesterday)\s*'", re.I)
_BY_COLUMN = "Keep the answer in a column of the table (a generated one, or one that a job of yours sets) and name that."


async def condition_columns(conn: Conn, relation: Relation, condition: str) -> tuple[str, ...]:
    """The columns that `condition` reads. Raises Refused, with the reason, for what is no condition over one row
    alone. Leaves nothing behind in the database."""
    if not condition.strip():
        raise Refused("--where is empty: leave it out to take all rows.")
    if "\0" in condition:
        raise Refused("--where holds a NUL character.")
    statements = Statements(
        _PACKAGE, _FILE, relation=quoted(relation.schema, relation.table), condition=fragment(condition)
    )
    try:
        async with conn.transaction(force_rollback=True):
            await conn.execute(statements["limits"], {})
            await conn.execute(statements["create_copy"], {})
            # Binary goes by the extended protocol, which takes one statement alone.
            await conn.execute(statements["create_index"], {}, binary=True)
            row = await (await conn.execute(statements["whole"], {})).fetchone()
            if row is None or not row[0]:
                raise Refused(f"The condition {condition!r} is not one expression.", hint=_example(relation))
            _refuse_moments(condition, row[1])
            cursor = await conn.execute(statements["columns"], {})
            return tuple([name for (name,) in await cursor.fetchall()])
    except errors.LockNotAvailable as error:
        raise Outage(
            f"{relation.name} is locked by another session: the condition could not be tried."
        ) from error
    except errors.InvalidObjectDefinition as error:
        raise await _changing(conn, condition) from error
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as error:
        raise _refusal(error, relation, condition) from error


def _refuse_moments(condition: str, definition: str) -> None:
    """`'now'` becomes a constant when it is read, each time another one."""
    for match in _MOMENT.finditer(condition):
        if match[0].lower() not in definition.lower():
            raise Refused(
                f"The condition reads {match[0]}, which means another moment each time: rows would change without a write.",
                hint=_BY_COLUMN,
            )


async def _changing(conn: Conn, condition: str) -> Refused:
    names = sorted({name.lower() for name in _CALLED.findall(condition)})
    cursor = await conn.execute(Statements(_PACKAGE, _FILE)["not_immutable"], {"names": names})
    called = [f"{name}()" for (name,) in await cursor.fetchall()]
    called += sorted({name.lower() for name in _KEYWORDS.findall(condition)})
    what = f"uses {', '.join(called)}, whose" if called else "holds a function or cast whose"
    return Refused(
        f"The condition {what} answer can change while the row does not: nothing would notice.",
        hint=_BY_COLUMN,
    )


def _refusal(error: psycopg.Error, relation: Relation, condition: str) -> Refused:
    said = error.diag.message_primary or str(error)
    if isinstance(error, errors.InsufficientPrivilege):
        return Refused(
            f"The condition could not be tried: {said}.",
            hint="grant temporary on the database, and select on the table, to this role",
        )
    if isinstance(error, errors.UndefinedColumn):
        name = re.search(r'column "([^"]*)"', said)
        known = [column.name for column in relation.columns]
        hint = near(name[1], known, "columns") if name else _example(relation)
        return Refused(f"The condition {condition!r}: {said}.", hint=hint)
    if isinstance(error, errors.FeatureNotSupported) and "subquer" in said:
        return Refused(
            f"The condition {condition!r} holds a subquery: a change of the other table would go unseen.",
            hint=_BY_COLUMN,
        )
    if isinstance(error, errors.DatatypeMismatch):
        return Refused(f"The condition {condition!r} is neither true nor false.", hint=_example(relation))
    return Refused(f"The condition {condition!r} is refused by PostgreSQL: {said}.", hint=_example(relation))


def _example(relation: Relation) -> str:
    column = next((c.name for c in relation.columns if c.type == "boolean"), relation.columns[0].name)
    is_boolean = any(c.name == column and c.type == "boolean" for c in relation.columns)
    return (
        f"For example: --where '{column}'" if is_boolean else f"For example: --where '{column} is not null'"
    )
