"""docs/cli.md says what the commands say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from instep.cli.reference import leaves, markdown

REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"
LEAVES = dict(leaves())


def test_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text("utf-8") == markdown(), "run: python -m instep.cli.reference > docs/cli.md"


@pytest.mark.parametrize("name", LEAVES)
def test_each_command_has_words_and_examples(name: str) -> None:
    """Every command and parameter is explained, and every command shows itself at least once."""
    leaf = LEAVES[name]
    assert leaf.help
    assert len(leaf.help.splitlines()[0]) <= 60, "its first line must fit into the list of commands"
    assert leaf.examples
    assert all(example.says.endswith(".") and name in example.line for example in leaf.examples)
    assert all(parameter.help for parameter in leaf.params)


@pytest.mark.parametrize("name", LEAVES)
def test_each_command_has_the_common_flags(name: str) -> None:
    flags = {flag for parameter in LEAVES[name].params for flag in parameter.opts}
    assert {"--json", "--yes", "--data-dir", "--database-url", "--debug"} <= flags


def test_hints_name_commands_that_there_are() -> None:
    """What a message tells people to type exists."""
    groups = {name.partition(" ")[0] for name in LEAVES if " " in name}
    for file in (Path(__file__).parents[2] / "src").rglob("*.py"):
        for first, second in re.findall(r"[`· ]instep ([a-z]+)(?: ([a-z]+))?", "\n".join(_strings(file))):
            if first in groups:
                assert not second or f"{first} {second}" in LEAVES, f"{file}: instep {first} {second}"


def _strings(file: Path) -> list[str]:
    """Literals of a module, those inside f-strings too."""
    return [
        node.value
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
