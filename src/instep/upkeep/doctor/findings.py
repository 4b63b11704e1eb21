"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from instep.upkeep.doctor.look import Look

State = Literal["ok", "warn", "failed", "skipped"]
Needs = Literal["server", "schema"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`do`: what the statements and commands are for ("end it"), or all that can be said where there are none. Statements
    are for any SQL session outside a transaction, by a role that may; commands are for a shell."""

    state: State
    detail: str
    do: str = ""
    statements: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """`run` gives at least one finding. `means`: what a fault of this kind does, in a sentence or two. `needs`: what must
    stand before it can be asked; where it does not, the check is skipped."""

    name: str
    means: str
    run: Callable[[Look], Awaitable[Sequence[Finding]]]
    needs: Needs = "schema"


@dataclass(frozen=True, slots=True)
class Result:
    """A finding under its check's name. `acknowledged`: a skip that was allowed by name."""

    name: str
    means: str
    finding: Finding
    acknowledged: bool = False

    def as_dict(self) -> dict[str, Any]:
        found = self.finding
        typed = " ".join((*found.statements, *found.commands))
        return {
            "name": self.name,
            "state": found.state,
            "detail": found.detail,
            "means": self.means,
            "action": ": ".join(part for part in (found.do, typed) if part) or None,
            "statements": list(found.statements),
            "commands": list(found.commands),
            "acknowledged": self.acknowledged,
        }


@dataclass(frozen=True, slots=True)
class Report:
    results: tuple[Result, ...]

    @property
    def exit_code(self) -> int:
        """0: everything was checked and is well; 1: something is not; 3: something could not be checked."""
        if any(result.finding.state in ("warn", "failed") for result in self.results):
            return 1
        skipped = [result for result in self.results if result.finding.state == "skipped"]
        return 3 if any(not result.acknowledged for result in skipped) else 0

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.exit_code == 0, "checks": [result.as_dict() for result in self.results]}


def ok(detail: str) -> list[Finding]:
    return [Finding("ok", detail)]


def skipped(detail: str, do: str = "", *statements: str) -> Finding:
    return Finding("skipped", detail, do, statements)


def ago(seconds: float) -> str:
    """How long, roughly: "41 s", "13 min", "5 h", "12 days"."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def several(number: int, singular: str, plural: str = "") -> str:
    """1, "table" → "1 table"; 2, "index", "indexes" → "2 indexes"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
