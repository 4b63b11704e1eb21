"""`instep plan`: what a run would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from instep.cli.parameters import Name
from instep.console.command import Answer, Commands, Example
from instep.console.figures import count, duration, percent, size
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "plan",
        [
            Example("instep plan packages", "What waits, and what all of it takes in time and on disk."),
            Example("instep plan packages.embed --json", "The same of one derivation, for a script."),
        ],
    )(plan)


async def plan(session: Session, name: Name) -> Answer:
    """Say what a run would do.

    What waits in each derivation, and what all rows together take: chunks, tokens, time, disk. Measures the model for
    a few seconds; changes nothing.
    """
    async with session.app() as app:
        told = await app.plan(name)
    waits = any(one["state"] != "in step" for one in told["derivations"])
    return Answer(told, list(_lines(told)), after=[f"Next: instep run {name}"] if waits else [])


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    table, rows = told.get("table"), told.get("rows")
    yield f"{told['name']}: {table}, {count(rows)} rows" if table and rows is not None else str(told["name"])
    width = max((len(one["name"]) for one in told["derivations"]), default=0)
    for one in told["derivations"]:
        waiting = one["waiting"] + one["leased"] + one["unabsorbed"]
        covered = "" if one["coverage"] is None else f", {percent(one['coverage'])} of rows covered"
        yield f"  {one['name']:<{width}}  {one['state']}: {count(waiting)} waiting, {count(one['dead'])} dead{covered}"
    if told.get("target"):
        yield _line("target", f"{told['target']}, {told['dimensions']} dimensions", width)
    if told.get("chunks") is not None:
        yield _line(
            "all rows", f"about {count(told['chunks'])} chunks, {count(told['tokens'])} tokens", width
        )
    if told.get("seconds") is not None:
        speed = f"{told['texts_per_second']:,.0f} texts/s measured just now"
        yield _line("time", f"about {duration(told['seconds'])} for all of them ({speed})", width)
    disk = told.get("bytes") or {}
    if disk:
        yield _line("disk", ", ".join(f"{size(number)} {what}" for what, number in disk.items()), width)
    if told.get("note"):
        yield _line("note", str(told["note"]), width)


def _line(title: str, value: str, width: int) -> str:
    return f"  {title:<{width}}  {value}"
