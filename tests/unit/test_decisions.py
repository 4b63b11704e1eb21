"""Each decision is listed, under its own title."""

from __future__ import annotations

from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


def test_the_list_of_decisions_is_complete() -> None:
    listed = (DECISIONS / "README.md").read_text("utf-8")
    for page in DECISIONS.glob("*.md"):
        assert page.name == "README.md" or f"[{page.name}]({page.name})" in listed, page.name
