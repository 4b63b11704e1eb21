"""The server, our schema in it, the session that it gives us, and this process's own clock and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from instep.database.looking import pgvector_is_old
from instep.database.migrations import unapplied
from instep.database.pool import OLDEST_PGVECTOR, refuse_server
from instep.database.statements import Statements, typed
from instep.errors import Refused
from instep.settings import variables
from instep.upkeep.doctor.findings import Check, Finding, State, ago, ok, several
from instep.upkeep.doctor.look import Look

CLOCK_SECONDS = 5.0  # of difference, beyond what the round trip explains
SHORT_MILLISECONDS = 3_600_000  # a statement that is ended sooner may be an index build

_FILE = ("instep.upkeep.doctor", "server.sql")
_SQL = Statements(*_FILE)


async def version(look: Look) -> list[Finding]:
    try:
        refuse_server(
            replace(look.server, pgvector="999", pgvector_found=True)
        )  # its pgvector is looked at apart
    except Refused as error:
        return [Finding("failed", str(error), error.hint or "")]
    major, minor = divmod(look.server.version, 10_000)
    return ok(f"PostgreSQL {major}.{minor}, {look.server.encoding}")


async def pgvector(look: Look) -> list[Finding]:
    server, oldest = look.server, ".".join(map(str, OLDEST_PGVECTOR))
    update, install = typed(*_FILE, "update_pgvector"), typed(*_FILE, "create_pgvector")
    offered = server.pgvector_available
    if server.pgvector is None:
        if offered is None or pgvector_is_old(offered):
            has = f"offers pgvector {offered}" if offered else "has no pgvector"
            return [Finding("failed", f"the server {has}", f"install pgvector {oldest} or newer on its machine, then", (install,))]  # fmt: skip
        return [Finding("failed", f"{server.database} has no pgvector", "make it", (install,))]
    if pgvector_is_old(server.pgvector):
        do = "update it" if offered and not pgvector_is_old(offered) else "upgrade the server's package, then"
        detail = f"pgvector {server.pgvector} has no iterative scans: {oldest} or newer is needed"
        return [Finding("failed", detail, do, (update,))]
    if not server.pgvector_found:
        path = typed(
            *_FILE, "search_path", database=sql.Identifier(server.database),
            schema=sql.Identifier(server.pgvector_schema or ""),
        )  # fmt: skip
        detail = (
            f"pgvector stands in the schema {server.pgvector_schema}, which is not on this role's search_path"
        )
        return [Finding("failed", detail, "put it there", (path,))]
    if offered and offered != server.pgvector:
        return [Finding("warn", f"pgvector {server.pgvector} is in use, and the server has {offered}", "update it", (update,))]  # fmt: skip
    return ok(f"{server.pgvector}, with iterative scans")


async def schema(look: Look) -> list[Finding]:
    try:
        pending = await unapplied(look.conn)
    except Refused as error:
        return [
            Finding("failed", str(error), "update this installation", (), ("pip install --upgrade instep",))
        ]
    if pending:
        detail = f"{several(len(pending), 'migration')} of this release {'is' if len(pending) == 1 else 'are'} still to be run: {', '.join(pending)}"
        return [Finding("failed", detail, "run", (), ("instep migrate",))]
    return ok("as this release knows it")


async def standby(look: Look) -> list[Finding]:
    recovering, host, port = await look.row(_SQL["recovery"])
    if not recovering:
        return ok("this server is the primary")
    where = f" ({host}:{port})" if host else ""
    promote = typed(*_FILE, "promote")
    do = f"lead INSTEP_DATABASE_URL to the primary{where}; or, if this server is to be the primary"
    return [Finding("failed", "this server is a standby: it refuses every write", do, (promote,))]


async def session(look: Look) -> list[Finding]:
    url = look.settings.direct_database_url or look.settings.database_url
    options = str(conninfo_to_dict(url).get("options", "")) if url else ""
    found = []
    read_only = look.session.get("default_transaction_read_only") == "on"
    template = "set_for_role_where_nothing_may_be_written" if read_only else "set_for_role"
    for name, good, detail in limits(look.session):
        state: State = "warn" if look.session[name].isdigit() else "failed"
        if name in options:
            found.append(Finding(state, detail, f"take {name} out of the connection string"))
            continue
        statement = typed(
            *_FILE, template, role=sql.Identifier(look.conn.info.user), database=sql.Identifier(look.server.database),
            name=sql.Identifier(name), value=sql.Literal(good),
        )  # fmt: skip
        found.append(Finding(state, detail, "set it for instep's role", (statement,)))
    return found or ok("no time-out or mode in a worker's sessions that stops work")


def limits(session: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Settings of a worker's session that stop work: name, the value that does not, and what is wrong, in words."""
    found = []
    for name, good, harm in (
        ("default_transaction_read_only", "off", "nothing can be written"),
        ("session_replication_role", "origin", "what workers write is not captured for chains"),
        ("statement_timeout", "0", "longer statements (an index build) are cancelled"),
        ("transaction_timeout", "0", "longer transactions are ended"),
    ):
        value = session.get(name, good)
        if value == good or (value.isdigit() and int(value) >= SHORT_MILLISECONDS):
            continue
        shown = f"{int(value) / 1000:g} s" if value.isdigit() else value
        found.append((name, good, f"{name} is {shown} in a worker's sessions: {harm}"))
    return found


async def clock(look: Look) -> list[Finding]:
    before = look.clock.now()
    (theirs,) = await look.row(_SQL["clock"])
    after = look.clock.now()
    ahead = max((before - theirs).total_seconds(), 0.0) or min((after - theirs).total_seconds(), 0.0)
    if abs(ahead) <= CLOCK_SECONDS:
        return ok("this machine's and the database's differ by less than 5 s")
    how = f"this machine's clock is {ago(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the database's"
    return [Finding("warn", how, "on the machine whose clock is wrong", (), ("timedatectl set-ntp true",))]


async def wave(look: Look) -> list[Finding]:
    settings, found = look.settings, []
    raised = [one.name for one in settings.explained() if one.source == "raised"]
    for name in raised:
        variable = variables(name)[0]
        detail = next(w for w in settings.warnings if name in w.lower().replace("-", "_"))
        command = f"export {variable}={getattr(settings, name):g}"
        found.append(Finding("warn", detail, "say it yourself", (), (command,)))
    budget, request = settings.call_timeout_seconds, settings.request_timeout_seconds
    if 0 < budget < request:
        detail = f"one request may take {request:g} s, a whole wave only {budget:g} s: a slow server looks like a wave that hangs"
        command = f"export {variables('request_timeout_seconds')[0]}={budget / 2:g}"
        found.append(Finding("warn", detail, "give a request less than a wave", (), (command,)))
    limit = f"{budget:g} s" if budget else "without limit (leases are renewed)"
    return found or ok(f"a lease of {settings.lease_seconds:g} s for a wave of at most {limit}")


CHECKS: Sequence[Check] = (
    Check("server", "An older server lacks statements that instep uses.", version, "server"),
    Check("pgvector", "Vectors are kept by pgvector; a filtered search needs its iterative scans (0.8).", pgvector, "server"),
    Check("schema", "Code and schema that do not fit each other are refused before any work.", schema, "server"),
    Check("standby", "A standby takes no writes: every run on it ends as an outage.", standby, "server"),
    Check("session", "What is set for the role or the database holds in every session of a worker too.", session, "server"),
    Check("clock", "Leases are judged by the database's clock alone, so no work is lost; ages in logs and metrics are wrong.", clock, "server"),
    Check("wave", "A wave that outlasts its lease is worked twice; its first result is then refused.", wave, "server"),
)  # fmt: skip
