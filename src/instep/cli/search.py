"""`instep search`: rows of a table by meaning and by words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from instep.cli.parameters import Name
from instep.console.command import Answer, Commands, Example
from instep.console.figures import count, duration, percent
from instep.console.progress import key_text
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.search.answers import Answer as Found

SHOWN_VALUES = 8  # of a facet


def register(root: Commands) -> None:
    root.leaf(
        "search",
        [
            Example('instep search packages "play chess against the computer"', "By meaning and by words."),
            Example("instep search packages chess --mode lexical", "By words alone."),
            Example(
                """instep search packages "board game" --where "section = 'games'" """.strip(),
                "Only rows for which the condition holds.",
            ),
            Example(
                "instep search packages editor --facets --limit 3",
                "With counts of the filter columns' values.",
            ),
            Example("instep search packages editor --json", "The results, for a script."),
        ],
    )(search)


async def search(
    session: Session,
    name: Name,
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="What to look for.")],
    mode: Annotated[
        Literal["hybrid", "dense", "lexical"],
        typer.Option("--mode", help="By meaning (dense), by words (lexical), or both (hybrid)."),
    ] = "hybrid",
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="A condition on the table's filter columns.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many results.")] = 10,
    offset: Annotated[int, typer.Option("--offset", help="How many results to leave out first.")] = 0,
    facets: Annotated[bool, typer.Option("--facets", help="Count the values of the filter columns.")] = False,
) -> Answer:
    """Search a table by meaning and by words.

    Rows that are gone or not eligible any more never appear, however much work waits.
    """
    words = " ".join(query)
    async with session.app() as app:
        found = await app.search(
            name, words, mode=mode, where=where, limit=limit, offset=offset, facets=facets
        )
    return Answer(found.as_dict(), list(_lines(found, offset)), after=list(_after(found)))


def _lines(found: Found, offset: int) -> Iterator[Any]:
    from rich.text import Text

    from instep.console.terminal import grid

    if not found.results:
        yield "nothing found"
    else:
        rows = [
            [
                str(offset + number),
                Text(key_text(one.key), "bold"),
                f"{one.score:.3g}",
                " · ".join(f"{leg} {rank}" for leg, rank in one.legs.items()),
                marked(one.text, one.highlights),
            ]
            for number, one in enumerate(found.results, 1)
        ]
        yield grid(rows, right=(0,), folds=4)
    for name, values in found.facets.items():
        counted = " · ".join(f"{one.value} {count(one.count)}" for one in values[:SHOWN_VALUES])
        yield Text.assemble((f"{name}  ", "dim"), counted)
    yield _foot(found)


def marked(text: str, highlights: Sequence[tuple[int, int]]) -> Any:
    """The snippet in one line, what was found in «guillemets», and bold where there is a terminal."""
    from rich.text import Text

    line, at = Text(), 0
    for start, end in highlights:
        line.append(text[at:start].replace("\n", " "))
        line.append(f"«{text[start:end]}»", "bold")
        at = end
    line.append(text[at:].replace("\n", " "))
    return line


def _foot(found: Found) -> str:
    answered = " and ".join(found.legs) + " answered"
    parts = [
        f"{len(found.results)} of about {count(found.total_about)} in {duration(found.seconds)}",
        answered,
    ]
    if found.coverage is not None and found.coverage < 1:
        parts.append(f"{percent(found.coverage)} of rows are embedded so far")
    return " · ".join(parts)


def _after(found: Found) -> Iterator[str]:
    yield from found.notes
