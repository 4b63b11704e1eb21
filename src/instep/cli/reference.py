"""docs/cli.md, written from the commands themselves: `python -m instep.cli.reference > docs/cli.md`.

A test (unit/test_cli_reference.py) says when the file is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from instep.cli.main import command
from instep.console.command import FLAGS, LeafCommand

_COMMON = {name for name, _, _ in FLAGS}
_HEAD = """# Command line reference

Written from the commands' own help by `python -m instep.cli.reference > docs/cli.md`: do not edit.

Every command takes these flags:

{flags}

Results are on stdout; notes, questions, progress and logs are on stderr. Colours and moving lines appear on a terminal
alone, and never with `NO_COLOR`. With `--json`, stdout is exactly one object; of an error it is
`{{"error": {{"message": …, "hint": …}}}}`, and the exit code stays what it is without `--json`.

| exit code | means |
| --- | --- |
| 0 | all well |
| 1 | something failed, was abandoned or is newly dead, or a backend is out or misconfigured |
| 2 | refused before any work: usage, settings, a table that cannot be added |
| 3 | nothing failed, but something could not be checked |
| 130, 143 | interrupted; terminated |
"""


def leaves(group: Any = None, path: tuple[str, ...] = ("instep",)) -> Iterator[tuple[str, LeafCommand]]:
    """Every command that does something: ("instep dead list", its object), in the order of the help."""
    group = group or command()
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        if isinstance(found, LeafCommand):
            yield " ".join((*path, name)), found
        else:
            yield from leaves(found, (*path, name))


def markdown() -> str:
    """The whole reference."""
    every = [(name, leaf) for name, leaf in leaves()]
    common = [parameter for parameter in every[0][1].params if parameter.name in _COMMON]
    flags = "\n".join(f"- {_parameter(parameter)}" for parameter in common)
    return "\n".join([_HEAD.format(flags=flags), *(_leaf(name, leaf) for name, leaf in every)])


def _leaf(name: str, leaf: LeafCommand) -> str:
    own = [parameter for parameter in leaf.params if parameter.name not in _COMMON | {"help"}]
    lines = [f"## {name}", "", leaf.help or "", ""]
    for parameter in own:
        lines.append(f"- {_parameter(parameter)}")
    if own:
        lines.append("")
    lines += ["```sh", *(line for e in leaf.examples for line in (f"# {e.says}", e.line)), "```", ""]
    return "\n".join(lines)


def _parameter(parameter: Any) -> str:
    takes = (
        ", ".join(map(str, parameter.type_descriptor.choices)) if parameter.type_descriptor.is_choice else ""
    )
    if parameter.param_type_name == "argument":
        called = f"`{parameter.metavar}`" + (" …" if parameter.nargs != 1 else "")
        need = "" if parameter.required else " (optional)"
        return f"{called}{need}: {parameter.help}"
    metavar = parameter.metavar or takes.replace(", ", "|")
    default = parameter.default
    said = f" Default: {default}." if default not in (None, False, "", ()) else ""
    need = " Required." if parameter.required else ""
    return f"{_flag(parameter.opts, metavar)}: {parameter.help}{said}{need}"


def _flag(names: Any, metavar: str | None) -> str:
    return f"`{', '.join(names)}{' ' + metavar if metavar else ''}`"


if __name__ == "__main__":
    sys.stdout.write(markdown())
