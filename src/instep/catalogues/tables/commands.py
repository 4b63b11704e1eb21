"""`instep tables`: which tables are derived from, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from instep.clock import SYSTEM
from instep.console.command import Answer, Commands, Example
from instep.console.figures import duration
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.catalogues.tables.options import TableOptions
    from instep.catalogues.tables.tables import Table

app = Commands("tables", help="Your tables: add, list, show, remove.")

Columns = str  # as typed: "title,body"


@app.leaf(
    "add",
    [
        Example("instep tables add articles --text title,body", "Show what it will take, then ask."),
        Example(
            'instep tables add articles --text title,body --where "published" --newest published_at --yes',
            "Only some rows, the newest first, without being asked.",
        ),
        Example(
            "instep tables add articles --text body --filters section,price --show title --yes",
            "With columns that searches may filter by, and columns that results carry.",
        ),
        Example("instep tables add shop.orders --text comment --name orders --yes", "A table of another schema."),
        Example("instep tables add articles --text title,body --yes --json", "For a script."),
    ],
)  # fmt: skip
async def add(
    session: Session,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Your table, with its schema where it needs one.")],
    text: Annotated[Columns, typer.Option("--text", metavar="COLUMNS", help="Its text, in this order: title,body.")],
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="Only rows for which this holds, in SQL.")
    ] = "",
    newest: Annotated[
        str, typer.Option("--newest", metavar="COLUMN", help="Rows with the highest value here are worked first.")
    ] = "",
    filters: Annotated[
        Columns, typer.Option("--filters", metavar="COLUMNS", help="Columns that searches may filter by.")
    ] = "",
    show: Annotated[Columns, typer.Option("--show", metavar="COLUMNS", help="Columns that results carry.")] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What to call it here, where the table's name does not do.")
    ] = "",
    engine: Annotated[
        Literal["auto", "tantivy", "postgres"] | None,
        typer.Option("--engine", help="The index of words; else by the setting search_engine."),
    ] = None,
    dimensions: Annotated[
        int, typer.Option("--dimensions", metavar="NUMBER", show_default=False, help="Refuse a model that gives another number.")
    ] = 0,
    halfvec: Annotated[bool, typer.Option("--halfvec", help="Keep vectors in half the room.")] = False,
    splitter: Annotated[
        str, typer.Option("--splitter", metavar="NAME", help="How texts are cut: 256t (tokens) or 1000c (characters).")
    ] = "",
    document_prefix: Annotated[
        str | None, typer.Option("--document-prefix", metavar="TEXT", help="Put before each text, for models that want it.")
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option("--query-prefix", metavar="TEXT", help="Put before each query, for models that want it.")
    ] = None,
) -> Answer:  # fmt: skip
    """Derive from a table of yours.

    Shows what it will take (rows, chunks, time, disk) and asks. Then installs triggers on your table, which is all
    that your table gets, and tables of its own in the schema instep. What is added is filled by `instep run`.
    """
    from instep.catalogues.tables.options import TableOptions

    options = TableOptions(
        table, _columns(text), name=name, where=where, newest=newest, filters=_columns(filters), show=_columns(show),
        dimensions=dimensions, halfvec=halfvec, splitter=splitter, document_prefix=document_prefix,
        query_prefix=query_prefix, engine=engine or "auto",
    )  # fmt: skip
    return await _add(session, options)


async def _add(session: Session, options: TableOptions) -> Answer:
    from instep.catalogues.tables.workshop import add_table, plan_table

    async with session.app() as opened:
        plan = await plan_table(opened, options)
        if plan is not None:
            if not session.terminal.json:
                session.terminal.lines(plan.lines())
            if not session.sure("Go on?"):
                return Answer(
                    {"name": plan.name, "added": False, "plan": plan.as_dict()}, ["nothing was changed"]
                )
        added = await add_table(opened, options)
    if added.already:
        lines = [f"{added.name} is added already, in the same way: nothing was changed"]
    else:
        lines = [f"Installed in {duration(added.seconds)}. Next: instep run {added.name}"]
    payload = {**added.as_dict(), "added": not added.already, "plan": plan.as_dict() if plan else None}
    return Answer(payload, lines)


@app.leaf(
    "list",
    [
        Example("instep tables list", "The tables that are derived from."),
        Example("instep tables list --json", "The same, for a script."),
    ],
)
async def list_(session: Session) -> Answer:
    """List the tables that are derived from."""
    from instep.catalogues.tables.tables import listed
    from instep.console.terminal import grid

    async with session.app() as opened, opened.database.connection() as conn:
        tables = [table.as_dict() for table in await listed(conn)]
    if not tables:
        return Answer(
            {"tables": []}, ["no tables yet"], after=["Next: instep tables add TABLE --text COLUMN"]
        )
    rows = [
        [
            one["name"],
            one["table"],
            ",".join(one["text"]),
            ",".join(one["filters"]) or "-",
            one["where"] or "-",
        ]
        for one in tables
    ]
    titles = ("name", "table", "text", "filters", "where")
    return Answer({"tables": tables}, [grid(rows, titles=titles, folds=4)])


@app.leaf(
    "show",
    [
        Example("instep tables show packages", "How a table is derived from."),
        Example("instep tables show packages --json", "The same, for a script."),
    ],
)
async def show(
    session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="Its name here.")]
) -> Answer:
    """Show how a table is derived from."""
    from instep.catalogues.tables.tables import shown

    async with session.app() as opened, opened.database.connection() as conn:
        table = await shown(conn, name)
    return Answer(table.as_dict(), list(_shown(table)), after=[f"instep status · instep plan {name}"])


@app.leaf(
    "remove",
    [
        Example("instep tables remove packages --yes", "Without being asked."),
        Example("instep tables remove packages --yes --json", "For a script."),
    ],
)
async def remove(
    session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="Its name here.")]
) -> Answer:
    """Stop deriving from a table.

    Its triggers, queues, chunks and index go and leave no trace. Your table and its rows stay. Works while workers
    run.
    """
    from instep.catalogues.tables.workshop import remove_table

    if not session.sure(f"Remove all that is derived from {name}? The table itself stays."):
        return Answer({"name": name, "removed": False}, ["nothing was changed"])
    began = SYSTEM.monotonic()
    async with session.app() as opened:
        await remove_table(opened, name)
    seconds = SYSTEM.monotonic() - began
    return Answer(
        {"name": name, "removed": True, "seconds": round(seconds, 3)},
        [f"Removed in {duration(seconds)}: nothing is left but the table itself"],
    )


def _shown(table: Table) -> Iterator[str]:
    told = table.as_dict()
    key = ", ".join(f"{column['name']} ({column['type']})" for column in told["key"])
    yield f"{told['name']}: {told['table']}, key {key}"
    for title in ("text", "filters", "show"):
        yield _line(title, ", ".join(told[title]) or "-")
    yield _line("where", told["where"] or "- (every row)")
    yield _line("newest", told["newest"] or "-")
    for target in told["targets"]:
        yield _line(target["derivation"].rpartition(".")[2], f"{target['name']}, {target['state']}")
    for derivation, columns in told["watched"].items():
        yield _line("watches", f"{derivation}: {', '.join(columns)}")
    yield _line("view", told["view"])


def _line(title: str, value: Any) -> str:
    return f"  {title:<10} {value}"


def _columns(typed: str) -> tuple[str, ...]:
    """title, body → ("title", "body"). A name with a comma in it is put in double quotes, as in SQL."""
    import csv

    rows = list(csv.reader([typed], skipinitialspace=True))
    return tuple(name.strip() for name in (rows[0] if rows else []) if name.strip())
