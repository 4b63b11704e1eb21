"""The derivation behind lexical search: rows → one text → segmented words and filter columns → an index.

Invariants (tests/postgres/test_search_derivation.py): hash and content of a row come from one snapshot; no more than
`CONTENT_BYTES` of text is held for a wave, but for a single row that is larger; a row whose hash is stamped is not
looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg import sql

from instep.database.statements import Statements, compose, fragment
from instep.engine.declaration import Columns, Declaration, Key, Target, quoted
from instep.engine.ports import Conn, Item, Loaded, Output, Sink
from instep.errors import Permanent
from instep.search.columns import Column
from instep.search.live import live_rows, more_columns, text_columns
from instep.search.ports import document
from instep.text.compose import entity_text
from instep.text.segment import VERSION

CONTENT_BYTES = 32 * 1024 * 1024
_THREAD_CHARACTERS = 64 * 1024
_SQL = ("instep.search", "derivation.sql")


def target_name(engine: str) -> str:
    """The name of a search target, with the version of the segmentation in it: `tantivy-words-v1`."""
    return f"{engine}-{VERSION}"


class SearchSink(Sink, Protocol):
    async def probe(self, target: Target) -> None:
        """Raises Outage where a write would fail now, whatever is written."""
        ...

    async def close(self) -> None:
        """Give back what is held between writes."""
        ...


@dataclass(frozen=True, slots=True)
class SearchContent:
    texts: tuple[str | None, ...]
    fields: Mapping[str, Any]


class SearchDerivation:
    """`engine.ports.Derivation` of `declaration.options["text"]` with the filter columns `columns`."""

    def __init__(
        self,
        declaration: Declaration,
        sink: SearchSink,
        columns: Sequence[Column] = (),
        content_bytes: int = CONTENT_BYTES,
    ) -> None:
        self._declaration, self._sink, self._filters = declaration, sink, tuple(columns)
        self._columns = Columns(declaration.source.key)
        self._content_bytes = content_bytes
        self._sql = Statements(_SQL[0], _SQL[1], **self._fragments())

    @property
    def declaration(self) -> Declaration:
        return self._declaration

    @property
    def sink(self) -> SearchSink:
        return self._sink

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        parameters = {**self._columns.arrays(keys), "place": list(range(len(keys)))}
        cursor = await conn.execute(self._sql["load"], {**parameters, "limit": self._content_bytes})
        items: list[Item] = []
        deferred: list[Key] = []
        texts = len(self._declaration.options["text"])
        for place, present, hash, *values in sorted(await cursor.fetchall(), key=lambda row: row[0]):
            key = keys[place]
            if not present:
                deferred.append(key)
            elif stamped.get(key) == hash:
                items.append(Item(key, hash, None))
            else:
                fields = {
                    column.name: value for column, value in zip(self._filters, values[texts:], strict=True)
                }
                size = sum(len(value) for value in values[:texts] if value)
                items.append(Item(key, hash, SearchContent(tuple(values[:texts]), fields), size))
        return Loaded(items, deferred)

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        if sum(item.size for item in items) > _THREAD_CHARACTERS:
            return await asyncio.to_thread(_outputs, items)
        return _outputs(items)

    async def probe(self, target: Target) -> None:
        await self._sink.probe(target)

    def _fragments(self) -> dict[str, sql.Composable]:
        columns, text = self._columns, self._declaration.options["text"]
        size: sql.Composable = fragment("0")
        for name in text:
            size = compose(*_SQL, "size", left=size, column=quoted("a", name))
        contents: list[tuple[str, sql.Composable]] = [
            *text_columns(text),
            *((f"field_{n}", column.encoded("a")) for n, column in enumerate(self._filters, 1)),
        ]
        names = [name for name, _ in contents]
        return {
            "keys_placed": columns.unnest(("place", "integer")),
            "key_k": columns.listed("k"),
            "on_a_k": columns.equal("a", "k"),
            "on_c_z": columns.equal("c", "z"),
            "sizes": live_rows(self._declaration, None, [("size", size)])[0],
            "rows": live_rows(self._declaration, None, [("present", fragment("true")), *contents])[0],
            "contents": more_columns([(name, sql.Identifier("c", name)) for name in names]),
        }


def _outputs(items: Sequence[Item]) -> list[Output | Permanent]:
    return [
        Output(item.key, item.hash, document(item.key, entity_text(item.content.texts), item.content.fields))
        for item in items
    ]
