"""The checks there are, and the order in which they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import psycopg
from psycopg import sql

from instep import registry
from instep.clock import SYSTEM, Clock
from instep.database.migrations import unapplied
from instep.engine.relations import near
from instep.errors import InstepError, Outage, Refused
from instep.settings import Settings
from instep.upkeep.doctor import capture, disk, pooler, queues, rights, server, snapshots, tables
from instep.upkeep.doctor.findings import Check, Finding, Report, Result, skipped
from instep.upkeep.doctor.look import Look, opened

SECONDS = 20.0  # that one check may take: doctor never hangs
DATABASE = "database"
REACHED = "Nothing can be worked, searched or checked without PostgreSQL."


def checks() -> tuple[Check, ...]:
    """The core's checks, then the catalogues' (registry.Catalogue.checks). Raises ValueError for a name used twice."""
    found = [
        *server.CHECKS, *pooler.CHECKS, *rights.CHECKS, *capture.CHECKS, *tables.CHECKS, *snapshots.CHECKS, *queues.CHECKS,
        *disk.CHECKS,
    ]  # fmt: skip
    for catalogue in registry.catalogues():
        if catalogue.checks:
            found += registry.load(catalogue.checks)
    names = [DATABASE, *(check.name for check in found)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"checks with the same name: {', '.join(sorted(twice))}")
    return tuple(found)


async def doctor(
    settings: Settings, *, only: Iterable[str] = (), allow_skip: Iterable[str] = (), clock: Clock = SYSTEM
) -> Report:
    """Make every check, or those named. Changes nothing. Raises Refused for an unknown name; a database that is out
    is a finding."""
    every = checks()
    wanted = _known(only, every)
    allowed = _known((*allow_skip, *settings.allow_skip), every)
    chosen = [check for check in every if not wanted or check.name in wanted]
    results: list[Result] = []
    made: Sequence[Finding]
    try:
        async with opened(settings, clock) as look:
            if not wanted or DATABASE in wanted:
                found = Finding("ok", f"{look.server.database} answers, as {look.conn.info.user}")
                results.append(Result(DATABASE, REACHED, found))
            schema = await _schema(look)
            for check in chosen:
                try:
                    async with asyncio.timeout(SECONDS):
                        made = await _made(check, look, schema)
                except TimeoutError:
                    made = [skipped(f"it took longer than {SECONDS:g} s")]
                    if check.needs == "schema":  # others would wait as long for the same lock
                        schema = f"the check {check.name} took longer than {SECONDS:g} s"
                results += [Result(check.name, check.means, finding) for finding in made]
    except (Refused, Outage) as error:
        results = [
            Result(DATABASE, REACHED, Finding("failed", " ".join(str(error).split()), error.hint or ""))
        ]
        for check in chosen:
            results.append(Result(check.name, check.means, skipped("no database to ask")))
    return Report(tuple(_acknowledged(result, allowed) for result in results))


def _known(names: Iterable[str], every: Sequence[Check]) -> set[str]:
    known, given = [DATABASE, *(check.name for check in every)], set(names)
    for name in sorted(given):
        if name not in known:
            raise Refused(f"there is no check {name!r}", hint=near(name, known, "checks"))
    return given


async def _schema(look: Look) -> str:
    """Why the schema cannot be asked; empty where it can."""
    try:
        return "the schema instep is not up to this release" if await unapplied(look.conn) else ""
    except Refused as error:
        return str(error)
    except psycopg.Error as error:
        return f"the schema instep cannot be read: {_said(error)}"


async def _made(check: Check, look: Look, schema: str) -> Sequence[Finding]:
    """A check that fails to run says so: it is not well, it is not known."""
    if check.needs == "schema" and schema:
        return [skipped(schema)]
    try:
        return await check.run(look)
    except psycopg.errors.InsufficientPrivilege as error:
        role = sql.Identifier(look.conn.info.user).as_string(None)
        return [skipped(f"the role {role} may not look: {_said(error)}")]
    except psycopg.Error as error:
        if look.conn.broken:
            raise Outage(f"the connection broke in the middle: {_said(error)}") from error
        return [skipped(f"PostgreSQL said: {_said(error)}")]
    except (InstepError, OSError) as error:
        return [skipped(str(error))]


def _said(error: psycopg.Error) -> str:
    return str(error.diag.message_primary or error).strip().partition("\n")[0]


def _acknowledged(result: Result, allowed: set[str]) -> Result:
    if result.finding.state != "skipped" or result.name not in allowed:
        return result
    return Result(result.name, result.means, result.finding, acknowledged=True)
