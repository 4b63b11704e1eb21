"""What a part found, as a Markdown table for people and JSON for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and its goal: `at_most` or `at_least`; with neither it is there to be read."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        if self.at_most is None and self.at_least is None:
            return ""
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return "ok" if low <= self.value <= high else "missed"

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"at most {number(self.at_most)}"
        return "" if self.at_least is None else f"at least {number(self.at_least)}"


@dataclass(frozen=True, slots=True)
class Table:
    """A detail table: every contestant with every setting, say."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(slots=True)
class Part:
    """The outcome of one part of the benchmark."""

    name: str
    about: str  # what was measured, and on what
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # what was verified, in words
    rounds: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def markdown(self) -> str:
        lines = [f"## {self.name}", "", self.about, ""]
        rows = [
            [figure.name, f"{number(figure.value)} {figure.unit}".rstrip(), figure.goal, figure.verdict]
            for figure in self.figures
        ]
        lines += _table(("figure", "measured", "goal", ""), rows)
        for table in self.tables:
            lines += ["", f"{table.title}:", ""]
            lines += _table(table.head, [[_cell(value) for value in row] for row in table.rows])
        if self.checks:
            lines += ["", *(f"- {check}" for check in self.checks)]
        return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """A figure as people read it: 31,400 · 56.2 · 1.43 · 0.031."""
    size = abs(value)
    if size >= 1000 or (size >= 10 and value == int(value)) or value == int(value):
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def write(parts: Sequence[Part], about: Mapping[str, Any], markdown: Path, json: Path) -> str:
    """Write both files; the Markdown is also returned, to be printed."""
    text = "# Benchmark\n\n" + "\n".join(f"- {name}: {value}" for name, value in about.items()) + "\n\n"
    text += "\n".join(part.markdown() for part in parts)
    data = {
        "about": dict(about),
        "parts": [
            {
                **asdict(part),
                "figures": [
                    {**asdict(figure), "goal": figure.goal, "verdict": figure.verdict}
                    for figure in part.figures
                ],
            }
            for part in parts
        ],
    }
    for path, content in (
        (markdown, text.encode()),
        (json, orjson.dumps(data, option=orjson.OPT_INDENT_2, default=str)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return text


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] * len(head)
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]
