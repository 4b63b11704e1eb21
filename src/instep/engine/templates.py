"""Tables and triggers made from templates have no migrations: which templates made them stands in instep.source.

What is kept here, and the test that guards it (tests/faults/test_schema.py):
- tables from older templates become what is made now: test_an_upgraded_table_is_a_new_one;
- once, whoever comes first: test_what_an_older_release_made_is_brought_up_to_date;
- what a newer release has taken up is left alone: test_what_a_newer_release_took_up_is_left_alone.
"""

from __future__ import annotations

from instep.database.statements import Statements, load
from instep.engine import capture
from instep.engine.declaration import Source, fragments
from instep.engine.declared import read_declarations
from instep.engine.ports import Conn

_FILE = ("instep.engine", "templates.sql")
_SQL = Statements(*_FILE)


async def recorded(conn: Conn, source_name: str) -> int | None:
    """The templates that the source was made from; None where it is not there."""
    row = await (await conn.execute(_SQL["recorded"], {"name": source_name})).fetchone()
    return None if row is None else int(row[0])


def newer(source_name: str, template: int) -> str:
    """The sentence for people, where a newer release has taken the source up; empty where none has."""
    if template <= capture.TEMPLATE:
        return ""
    return f"{source_name} was taken up by a newer release of instep (template {template}, this one knows {capture.TEMPLATE})"


async def upgrade(conn: Conn, source: Source) -> list[str]:
    """Bring the tables of a source up to date, in the caller's transaction and under its lock (install.lock): what was
    done, in a line for people."""
    template = await recorded(conn, source.name)
    if template is None or template >= capture.TEMPLATE:
        return []
    statements = load(*_FILE)
    declarations = await read_declarations(conn, source)
    for number in range(template + 1, capture.TEMPLATE + 1):
        if f"upgrade_{number}_source" in statements and declarations:
            bound = Statements(*_FILE, **fragments(declarations[0]))
            await conn.execute(bound[f"upgrade_{number}_source"], {})
        if f"upgrade_{number}_derivation" in statements:
            for declaration in declarations:
                bound = Statements(*_FILE, **fragments(declaration))
                await conn.execute(bound[f"upgrade_{number}_derivation"], {})
    return [f"tables and triggers of template {template} were brought to {capture.TEMPLATE}"]
