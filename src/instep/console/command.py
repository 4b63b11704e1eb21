"""A command of the command line: an async function from a Session and its parameters to an Answer.

`Commands.command` registers one with Typer. Each command thereby has the flags --json, --yes, --data-dir,
--database-url and --debug, and examples that `--help` shows, docs/cli.md lists and a test runs
(postgres/test_cli_examples.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperArgument, TyperCommand

from instep.console.session import Session
from instep.console.terminal import Terminal
from instep.errors import InstepError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from instep.settings import Settings


@dataclass(frozen=True, slots=True)
class Example:
    """A command line as a user types it, and what it does. `exit_code`: what it ends with on the documentation's
    database; `stays`: it runs until it is interrupted; `needs`: "embedded" where it needs the embedded server, "client"
    where somebody must ask it something."""

    line: str
    says: str
    exit_code: int = 0
    stays: bool = False
    needs: str = ""


@dataclass(slots=True)
class Answer:
    """What a command found or did: `payload` for scripts, `lines` for people, and the exit code."""

    payload: dict[str, Any]
    lines: Iterable[RenderableType] = ()
    exit_code: int = 0
    after: Sequence[RenderableType] = field(default_factory=list)  # for people, on stderr: what to type next


class Ends(InstepError):
    """A command ends without an answer, with this exit code: 143, say, after SIGTERM."""

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class LeafCommand(TyperCommand):
    """A command whose help ends with its examples."""

    examples: tuple[Example, ...] = ()

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):  # "NAME", not "NAME <str>"
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not self.examples:
            return
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(
                    f"  # {example.says}\n  {example.line}\n"
                )  # not wrapped: it is there to be copied


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the caller of the command line hands down to a command (`typer.Context.obj`)."""

    settings: Settings | None = None  # used as they are, instead of being loaded
    aside: bool = False  # results go to stderr: stdout is for the caller's own
    silent: bool = False  # nothing is shown: the caller wants the answer alone
    yes: bool = False


AnyWork = TypeVar("AnyWork", bound=Callable[..., Any])

FLAGS: tuple[tuple[str, Any, Any], ...] = (
    ("json", bool, typer.Option("--json", help="Print one object for scripts, and nothing else, on stdout.")),
    ("yes", bool, typer.Option("--yes", "-y", help="Answer every question with yes.")),
    (
        "data_dir",
        str,
        typer.Option("--data-dir", metavar="DIR", help="The embedded server, models and indexes are here."),
    ),
    (
        "database_url",
        str,
        typer.Option(
            "--database-url", metavar="URL", help="The PostgreSQL to use instead of the embedded one."
        ),
    ),
    ("debug", bool, typer.Option("--debug", help="Log everything; show where an error came from.")),
)


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, name: str | None = None, help: str | None = None, **more: Any) -> None:
        super().__init__(
            name=name, help=help, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
            no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
            **more,
        )  # fmt: skip

    def leaf(
        self, name: str, examples: Sequence[Example], *, hidden: bool = False, passes_on: bool = False
    ) -> Callable[[AnyWork], AnyWork]:
        """Register `work(session, …) -> Answer`, async as a rule, as the command `name`. `passes_on`: unknown options are
        arguments for another program, which are then in `session.rest`."""

        def register(work: AnyWork) -> AnyWork:
            leaf = type("Leaf", (LeafCommand,), {"examples": tuple(examples)})
            context = {"allow_extra_args": True, "ignore_unknown_options": True} if passes_on else {}
            self.command(
                name,
                cls=leaf,
                help=inspect.getdoc(work),
                short_help=(inspect.getdoc(work) or "").partition("\n")[0].rstrip("."),
                hidden=hidden,
                context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, **context},
            )(_entry(work))
            return work

        return register


def _entry(work: Callable[..., Any]) -> Callable[..., Answer]:
    """The synchronous function that Typer calls: reads the common flags, runs the work, prints the answer."""

    def entry(ctx: typer.Context, **values: Any) -> Answer:
        common = {name: values.pop(name) for name, _, _ in FLAGS}
        around = ctx.obj if isinstance(ctx.obj, Surroundings) else Surroundings()
        terminal = Terminal(json=common["json"], yes=common["yes"] or around.yes, aside=around.aside)
        flags = {
            "data_dir": common["data_dir"],
            "database_url": common["database_url"],
            "log_level": "debug" if common["debug"] else None,
        }
        session = Session(terminal, flags, around.settings, tuple(ctx.args))
        answer = (
            _run(work(session, **values)) if inspect.iscoroutinefunction(work) else work(session, **values)
        )
        if around.silent:
            return cast(Answer, answer)
        if terminal.json:
            terminal.object(answer.payload)
        else:
            terminal.lines(answer.lines)
            for line in answer.after:
                terminal.note(line)
        return cast(Answer, answer)

    own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    common = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if type_ is bool else None,
            annotation=Annotated[type_ if type_ is bool else type_ | None, option],
        )
        for name, type_, option in FLAGS
    ]
    parameters = [context, *own, *common]
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    entry.__name__ = getattr(work, "__name__", "command")
    return entry


def _run(work: Awaitable[Answer]) -> Answer:
    import asyncio  # not before it is needed: --help does without

    import uvloop

    async def main() -> Answer:
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
