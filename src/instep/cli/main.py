"""The command line: which commands there are, and what becomes of errors.

Exit codes: 0 all well; 1 something failed, was abandoned or is newly dead, or a backend is out or misconfigured;
2 refused before any work; 3 nothing failed, but something could not be checked; 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from instep.cli import (
    completion,
    config,
    db,
    dead,
    demo,
    doctor,
    explain,
    init,
    keys,
    pause,
    plan,
    run,
    search,
    serve,
    status,
    worker,
)
from instep.console.command import Answer, Commands, Ends, Surroundings
from instep.errors import InstepError, Refused
from instep.registry import catalogues, load

FIRST = 2  # core commands that help lists before the catalogues
REFUSED, FAILED, INTERRUPTED = 2, 1, 130


class Root(TyperGroup):
    """The core's commands, and those of the catalogues, each loaded when it is used or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        core = list(self.commands)
        added = [catalogue.name for catalogue in catalogues() if catalogue.commands]
        return [*core[:FIRST], *added, *core[FIRST:]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = self.commands.get(cmd_name)
        if known is not None:
            return known
        for catalogue in catalogues():
            if catalogue.name == cmd_name and catalogue.commands:
                group = typer.main.get_group(load(catalogue.commands))
                group.name = catalogue.name
                return group
        return None


root = Commands("instep", help="Everything you derive from PostgreSQL, kept in step with it.", cls=Root)

for module in (
    init,
    plan,
    run,
    worker,
    serve,
    pause,
    status,
    search,
    explain,
    doctor,
    config,
    completion,
    demo,
):
    module.register(root)
root.add_typer(dead.commands, name="dead")
root.add_typer(keys.commands, name="keys")
root.add_typer(db.commands, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"instep {version('instep')}")
        raise typer.Exit


@root.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """The program `instep`."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run a command line; errors become words and exit codes."""
    json, debug = "--json" in arguments, "--debug" in arguments
    try:
        return perform(arguments).exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: say nothing at exit
        return FAILED
    except Exception as error:  # noqa: BLE001 the last stop: what is not ours is shown too, or re-raised by --debug
        return _explained(error, json=json, debug=debug)


def perform(arguments: Sequence[str], around: Surroundings | None = None) -> Answer:
    """Run a command line and give its answer, printed already; errors are raised."""
    outcome = command()(
        list(arguments), prog_name="instep", standalone_mode=False, obj=around or Surroundings()
    )
    if isinstance(outcome, Answer):
        return outcome
    return Answer({}, exit_code=int(outcome or 0))


def command() -> Any:
    """The whole command line, as Typer's command object."""
    return typer.main.get_command(root)


def _explained(error: Exception, *, json: bool, debug: bool) -> int:
    from instep.console.terminal import Terminal

    terminal = Terminal(json=json)
    usage = getattr(error, "show", None)  # a usage error of Typer's, which knows its own words
    if usage is not None:
        if json:
            terminal.object({"error": {"message": error.format_message(), "hint": None}})  # type: ignore[attr-defined]
        usage()
        return int(getattr(error, "exit_code", REFUSED))
    if debug:
        import traceback

        traceback.print_exception(error)
    told = error if isinstance(error, InstepError) else _foreign(error)
    if json:
        terminal.object({"error": {"message": str(told), "hint": told.hint}})
    terminal.error(told)
    if isinstance(error, Ends):
        return error.exit_code
    return REFUSED if isinstance(error, Refused) else FAILED


def _foreign(error: Exception) -> InstepError:
    """An error that is not of our tree: a defect, or the database's words that nobody expected there."""
    what = str(error).strip() or "no further words"
    return InstepError(f"{type(error).__name__}: {what}", hint="give --debug to see where it came from")
