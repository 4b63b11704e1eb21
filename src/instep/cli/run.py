"""`instep run`: work what waits, say what was done, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from instep.cli.parameters import Names
from instep.clock import SYSTEM
from instep.console.command import Answer, Commands, Ends, Example
from instep.console.figures import count, duration
from instep.console.progress import Watch, key_text, watch
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.engine.ports import RunReport
    from instep.engine.stopping import Stop

TERMINATED = 143
IDLE_SECONDS = 60.0


def register(root: Commands) -> None:
    root.leaf(
        "run",
        [
            Example(
                "instep run packages", "Work both derivations of the table packages until nothing waits."
            ),
            Example("instep run packages.embed", "Work one of them."),
            Example("instep run", "Work everything."),
            Example("instep run packages --json", "The counters, for a script."),
        ],
    )(run)


async def run(session: Session, names: Names = None) -> Answer:
    """Work what waits, then end.

    Finds what changed, computes, writes, and says what was done. Ctrl-C finishes the wave in hand, a second one stops
    at once; whatever is not done waits for the next run. Exit code 1 where something failed, was abandoned, is newly
    dead, or a backend is out or misconfigured.
    """
    asked = names or []
    reports, seen = await work(session, asked)
    return Answer(
        payload(asked, reports),
        list(summary(reports)),
        exit_code=max((report.exit_code for report in reports), default=0),
        after=list(following(reports, seen)),
    )


async def work(
    session: Session, names: Sequence[str], *, follow: bool = False, lines: bool = False
) -> tuple[list[RunReport], Watch]:
    """Run under the signals' rules, with what is seen of it on stderr. Raises Ends after SIGTERM."""
    import asyncio

    from instep.worker import Terminated, supervise

    seen = watch(session.terminal, session.settings.batch_size, lines=lines)
    async with session.app() as app:

        async def drain(stop: Stop) -> list[RunReport]:
            return await app.run(names, observer=seen, stop=stop, follow=follow)

        idle = asyncio.create_task(_tell_idle(session, seen)) if follow else None
        with seen:
            try:
                return await supervise(drain, session.terminal.note), seen
            except Terminated:
                raise Ends("terminated: everything in hand was given back", exit_code=TERMINATED) from None
            finally:
                if idle is not None:
                    idle.cancel()


async def _tell_idle(session: Session, seen: Watch) -> None:
    """A line for each minute without a wave, so that a worker with nothing to do does not look like a dead one."""
    from asyncio import sleep

    told = SYSTEM.monotonic()
    while True:
        await sleep(IDLE_SECONDS / 60)
        now = SYSTEM.monotonic()
        if now - max(told, seen.last_wave) >= IDLE_SECONDS:
            told = now
            waiting = sum(line.waiting for line in seen.lines.values())
            left = f", {count(waiting)} waiting" if waiting else ""
            session.terminal.note(f"idle for {duration(now - seen.last_wave)}{left}")


def payload(names: Sequence[str], reports: Sequence[RunReport]) -> dict[str, Any]:
    """One object: for one table the counters of its first derivation, those of the others beside them under their
    last names; for several tables {"runs": [...]}."""
    sources: dict[str, dict[str, Any]] = {}
    for report in reports:
        source, _, last = report.name.partition(".")
        counters = {
            "name": report.name,
            **report.counters.as_dict(),
            "outage": report.outage or None,
            "configuration": report.configuration or None,
            "interrupted": report.interrupted,
            "paused": report.paused or None,
            "pending": report.pending,
            "seconds": round(report.seconds, 3),
        }
        if source in sources:
            sources[source][last] = counters
        else:
            sources[source] = counters
    runs = list(sources.values())
    for one, source in zip(runs, sources, strict=True):
        if any(isinstance(value, dict) for value in one.values()):
            one["name"] = source
    return runs[0] if len(runs) == 1 and len(names) <= 1 and names else {"runs": runs}


def summary(reports: Sequence[RunReport]) -> Iterator[str]:
    """A line for each derivation: what was done, how long it took, what is left."""
    if not reports:
        yield "there are no tables yet: instep tables add TABLE --text COLUMN"
    width = max((len(report.name) for report in reports), default=0)
    for report in reports:
        counters = report.counters
        shown = {"removed", "reused", "superseded", "truncated", "abandoned"}
        parts = [
            f"{name} {count(value)}" for name, value in counters.as_dict().items() if value and name in shown
        ]
        if counters.failed or counters.dead:
            parts += [f"failed {count(counters.failed)}", f"dead {count(counters.dead)}"]
        if counters.indexed or parts:
            parts.insert(0, f"indexed {count(counters.indexed)}")
        elif report.paused:
            parts = ["paused"]
        elif not report.pending and not report.exit_code:
            parts = ["nothing to do"]
        parts.append(duration(report.seconds))
        parts.append(
            f"{count(report.pending)} left" if report.pending else "in step" if _well(report) else ""
        )
        yield f"{report.name:<{width}}   {' · '.join(part for part in parts if part)}"


def _well(report: RunReport) -> bool:
    return not (report.exit_code or report.interrupted or report.paused)


def following(reports: Sequence[RunReport], seen: Watch) -> Iterator[str]:
    """What did not go well, and what to type next."""
    for report in reports:
        counters, line = report.counters, seen.lines.get(report.name)
        if counters.failed > counters.dead:
            key = f' {report.name} "{key_text(line.failed_keys[-1])}"' if line and line.failed_keys else ""
            yield (
                f"{count(counters.failed - counters.dead)} failed: tried again after a pause by the next run"
                + (f", see: instep explain{key}" if key else "")
            )
        if counters.dead:
            yield f"{count(counters.dead)} newly dead, see: instep dead list {report.name}"
        if counters.abandoned:
            yield (
                f"{count(counters.abandoned)} abandoned: the time limit of a wave was too short for them "
                "(INSTEP_CALL_TIMEOUT_SECONDS, INSTEP_BATCH_SIZE)"
            )
        if report.outage:
            yield f"{report.name} stopped: {report.outage}"
            yield f"  nothing was counted as failed; when it answers again: instep run {report.name}"
        if report.configuration:
            yield f"{report.name} stopped: {report.configuration}"
            source = report.name.split(".")[0]
            yield (
                f"  nothing was counted as failed; mend that (instep config shows the settings, instep tables show {source} "
                f"the table), then: instep run {report.name}"
            )
        if report.paused:
            yield f"{report.name} is paused: {report.paused}"
            yield "  nothing new was begun; to go on: instep resume"
    stopped = [report.name for report in reports if report.interrupted and report.pending]
    if stopped:
        yield f"Stopped as you asked. To go on: instep run {' '.join(stopped)}"
