"""docs/cli.md says what the commands say."""

from __future__ import annotations

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
