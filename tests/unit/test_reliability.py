"""docs/reliability.md: each claim names a test, and each test that is named is there."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
ROWS = [
    line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| claim", "| ---"))
]
_NAMED = re.compile(r"(?P<file>(?:tests/\w+/)?test_\w+\.py)?(?:::)?(?P<test>(?:test_|…_)[\w…]+\*?)?")


@cache
def functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def named(row: str) -> list[tuple[list[Path], str]]:
    """Files and a pattern of test names, for each word of the last column that names a test."""
    files = sorted((ROOT / "tests").glob("*/test_*.py"))
    found: list[tuple[list[Path], str]] = []
    for match in _NAMED.finditer(row.rstrip("| ").rsplit(" | ", 1)[1]):
        if match["file"] is None and match["test"] is None:
            continue
        chosen = [file for file in files if match["file"] and file.as_posix().endswith(f"/{match['file']}")]
        found.append((files if match["file"] is None else chosen, (match["test"] or "*").replace("…", "*")))
    return found


@cache
def torture(file: Path) -> frozenset[str]:
    """The tests that `make test` plays no part of: marked themselves, not one of their parameters."""
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(mark) == "pytest.mark.torture" for mark in node.decorator_list)
    )


def unsaid(row: str) -> list[str]:
    """Torture tests that the row names one by one without saying what they are."""
    if re.search(r"\(torture\)|`make torture`", row):
        return []
    return [
        name
        for files, pattern in named(row)
        if pattern != "*"
        for file in files
        for name in torture(file)
        if fnmatch(name, pattern)
    ]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_claim_says_what_make_test_does_not_play(row: str) -> None:
    assert unsaid(row) == []


def test_a_torture_test_that_is_not_said_is_seen() -> None:
    row = "| so | `tests/faults/test_database.py::test_c6_70_five_minutes_without_a_database` |"
    assert unsaid(row) == ["test_c6_70_five_minutes_without_a_database"]
    assert unsaid(row.replace("` |", "` (torture) |")) == []


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_claim_names_tests_that_are_there(row: str) -> None:
    tests = named(row)
    assert tests, f"no test is named: {row}"
    for files, pattern in tests:
        known = {name for file in files for name in functions(file)}
        assert any(fnmatch(name, pattern) for name in known), f"there is no test {pattern}: {row}"


def test_a_claim_without_its_test_is_seen() -> None:
    assert named("| it is so | trust us |") == []
    ((files, pattern),) = named("| it is so | `tests/unit/test_reliability.py::test_nothing` |")
    assert files == [Path(__file__)]
    assert pattern not in functions(Path(__file__))
