"""Work that nobody does, and dead letters that nobody looks at."""

from __future__ import annotations

from collections.abc import Sequence

from instep.database.statements import Statements
from instep.engine import status
from instep.engine.dead import DeadLetters
from instep.engine.declaration import fragments
from instep.upkeep.doctor.findings import Check, Finding, ago, ok, several
from instep.upkeep.doctor.look import Look

WAIT_SECONDS = 1_800.0  # of the oldest entry, or since the last run, while work waits
DEAD_SECONDS = 7 * 86_400.0  # of the oldest dead letter

_FILE = ("instep.upkeep.doctor", "queues.sql")


async def backlog(look: Look) -> list[Finding]:
    found, total = [], 0
    for seen in await look.sources():
        if not seen.members:
            continue  # its table is gone, which the check capture says
        for declaration in seen.declarations:
            reading = next(
                t for t in seen.targets if t.derivation == declaration.name and t.state == "reading"
            )
            one = await status.read(look.conn, declaration, reading, "not counted here")
            waiting = one.waiting + one.leased + one.unabsorbed
            total += waiting
            bound = Statements(*_FILE, **fragments(declaration))
            oldest, since_run = await look.row(bound["waits"], derivation=declaration.name)
            working = one.last_run is not None and one.last_run.outcome == "running"
            waited = max(oldest, since_run if one.unabsorbed or one.waiting else 0.0)
            if working or waited < WAIT_SECONDS:
                continue
            last = f"the last run ended {ago(since_run)} ago" if one.last_run else "it was never run"
            number = several(waiting, "entry", "entries")
            detail = f"{declaration.name}: {number} wait, the oldest for {ago(waited)}, and nobody works them ({last})"
            found.append(Finding("failed", detail, "work them, and look at the timer that should", (), (f"instep run {declaration.name}",)))  # fmt: skip
    return found or ok(f"{several(total, 'entry', 'entries')} wait" if total else "nothing waits")


async def dead_letters(look: Look) -> list[Finding]:
    found, total = [], 0
    for declaration, _ in await look.derivations():
        kinds = await DeadLetters(declaration).kinds(look.conn)
        total += sum(kind.count for kind in kinds)
        now = look.clock.now()
        old = [kind for kind in kinds if (now - kind.oldest).total_seconds() > DEAD_SECONDS]
        if old:
            number = sum(kind.count for kind in old)
            age = ago(max((now - kind.oldest).total_seconds() for kind in old))
            listed = ", ".join(kind.kind or "no kind" for kind in old)
            name = declaration.name
            detail = f"{name}: {several(number, 'dead letter')} ({listed}), the oldest for {age}: those rows have no output"
            commands = (f"instep dead list {name}", f"instep dead replay {name} --yes", f"instep run {name}")
            found.append(Finding("warn", detail, "look; mend the rows; try them again", (), commands))
    return found or ok(
        f"{several(total, 'dead letter')}, none older than {ago(DEAD_SECONDS)}" if total else "none"
    )


CHECKS: Sequence[Check] = (
    Check("backlog", "A timer that died or a worker that succeeds at nothing shows in the oldest wait alone.", backlog),
    Check("dead-letters", "A row with a dead letter has no output until somebody replays or discards it, or its content changes.", dead_letters),
)  # fmt: skip
