"""Which tables of the database could be added, to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from instep.database.statements import Statements
from instep.engine.ports import Conn

MOST = 500

_SQL = Statements("instep.catalogues.tables", "candidates.sql")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`rows_about`: PostgreSQL's own idea, -1 where it has none. `name`: that of the source that it is already."""

    table: str
    rows_about: int
    name: str | None
    columns: tuple[dict[str, Any], ...]  # name, type, whether it holds text

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "rows_about": self.rows_about,
            "added": self.name is not None,
            "name": self.name,
            "columns": list(self.columns),
        }


async def candidates(conn: Conn) -> list[Candidate]:
    """Ordinary and partitioned tables that have a primary key and a column of text, and that this role may read; by name,
    at most MOST."""
    rows = await (await conn.execute(_SQL["candidates"], {"limit": MOST})).fetchall()
    return [Candidate(table, int(about), name, tuple(columns)) for table, about, name, columns in rows]
