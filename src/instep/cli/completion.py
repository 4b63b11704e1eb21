"""`instep completion`: the script that a shell needs to complete commands, flags and names of tables."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer import completion as shells

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session

PROGRAM, VARIABLE = "instep", "_INSTEP_COMPLETE"


def register(root: Commands) -> None:
    shells.completion_init()  # type: ignore[attr-defined] # the shell calls `instep` itself for completions: it must know the shells' ways
    root.leaf(
        "completion",
        [
            Example("instep completion bash > ~/.local/share/bash-completion/completions/instep", "Bash: from the next shell on."),
            Example('eval "$(instep completion zsh)"', "Zsh: in this shell; put it into ~/.zshrc for all."),
            Example("instep completion fish > ~/.config/fish/completions/instep.fish", "Fish."),
        ],
    )(completion)  # fmt: skip


def completion(
    session: Session,
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> Answer:
    """Print a shell's completion script.

    It completes commands, flags and names of tables.
    """
    script = shells.get_completion_script(  # type: ignore[attr-defined]
        prog_name=PROGRAM, complete_var=VARIABLE, shell=shell
    )
    return Answer({"shell": shell, "script": script}, [script])
