"""The demo's table, written as any program would write it: instep is not asked and not told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import psycopg

from instep.cli.demo.records import Package
from instep.database.statements import Statements

TELL_EVERY = 500  # rows


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement as it was sent, and how many rows it changed."""

    statement: str
    rows: int


class Table:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._sql = Statements("instep.cli.demo", "table.sql")

    def load(self, packages: Sequence[Package], told: Callable[[int], None]) -> int:
        """COPY the rows in; how many of them were new or different. `told` hears how many were sent."""
        with psycopg.connect(self._dsn) as conn:
            conn.execute(self._sql["create"])
            conn.execute(self._sql["stage"])
            with conn.cursor() as cursor, cursor.copy(self._sql["copy"]) as copy:
                for number, package in enumerate(packages, 1):
                    copy.write_row(astuple(package))
                    if number % TELL_EVERY == 0 or number == len(packages):
                        told(number)
            gone = conn.execute(self._sql["settle_gone"]).rowcount
            return gone + conn.execute(self._sql["settle"]).rowcount

    def rewrite(self, names: Sequence[str], old: str, new: str) -> Sent:
        """Replace a word in the descriptions of these rows."""
        return self._change("rewrite", {"names": list(names), "old": old, "new": new})

    def delete(self, names: Sequence[str]) -> Sent:
        return self._change("delete", {"names": list(names)})

    def close(self, names: Sequence[str]) -> Sent:
        """Set the column of the table's condition."""
        return self._change("close", {"names": list(names)})

    def touch(self) -> Sent:
        """Write a column of every row that nothing is derived from."""
        return self._change("touch", {})

    def count(self) -> int:
        with psycopg.connect(self._dsn) as conn:
            row = conn.execute(self._sql["count"]).fetchone()
            return int(row[0]) if row else 0

    def _change(self, statement: str, values: dict[str, object]) -> Sent:
        with psycopg.connect(self._dsn) as conn, psycopg.ClientCursor(conn) as cursor:
            text = cursor.mogrify(self._sql[statement], values)
            lines = [line for line in text.splitlines() if not line.startswith("--")]
            cursor.execute(self._sql[statement], values)
            return Sent(" ".join(" ".join(lines).split()), cursor.rowcount)
