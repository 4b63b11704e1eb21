"""The derivation that embeds: rows → texts → chunks → vectors.

Invariants:
- hash and content of a row come from one snapshot (test_chunks_derivation.py: test_load_is_one_snapshot);
- a text that an entity's chunks already hold is not sent again (test_one_of_fifty_paragraphs), equal texts of a
  wave are sent once (test_equal_texts_are_sent_once);
- no more than `CONTENT_BYTES` of content is held for a wave, but for a single row that is larger (test_deferred).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from psycopg import sql

from instep.chunks.entity_chunks import EntityChunks, Vectors
from instep.chunks.key_arrays import key_arrays, placed
from instep.chunks.names import chunk_tables
from instep.chunks.sink import ChunkSink, Direct
from instep.chunks.splitting import splitter_of, tokens_of, whole_limit
from instep.database.statements import Statements, compose, fragment
from instep.engine.declaration import Columns, Declaration, Key, Target, quoted
from instep.engine.ports import Conn, Item, Loaded, Output
from instep.errors import Configuration, Permanent, Refused
from instep.inference.ports import Embedded, Embedder
from instep.text.compose import entity_text
from instep.text.split import Splitter

CONTENT_BYTES = 16 * 1024 * 1024
_THREAD_BYTES = (
    256 * 1024
)  # splitting less than this takes the event loop no longer than a thread's start is worth
_LARGEST_HALF = 65_504.0


@dataclass(frozen=True, slots=True)
class Making:
    """How a target's outputs are made: its model, its splitter and what stands before each text."""

    embedder: Embedder
    splitter: Splitter
    document_prefix: str = ""


def making_of(target: Target, embedder: Embedder) -> Making:
    """What a target's spec says, with `embedder` as its model. Refused for a splitter that needs the tokenizer of a
    model that has none at hand."""
    prefix = str(target.spec.get("document_prefix", ""))
    count, code = embedder.measure(), str(target.spec["splitter"])
    if count is None or "c" in code:
        return Making(embedder, splitter_of(code, None), prefix)
    # The prefix is sent along, and the model's own marks: both must fit.
    return Making(embedder, splitter_of(code, tokens_of(count), count(prefix)), prefix)


class PreparedText(NamedTuple):
    """The content of an item: the texts of its chunks by hash, and which of them need no computing."""

    hashes: tuple[bytes, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    texts: Mapping[bytes, str]
    reusable: frozenset[bytes] = frozenset()


class ChunkDerivation:
    """`engine.ports.Derivation` over a table's text columns (`declaration.options["text"]`). `making` gives what a
    target is made by; it is asked once for each target."""

    def __init__(
        self,
        declaration: Declaration,
        making: Callable[[Target], Making],
        direct: Direct | None = None,
        content_bytes: int = CONTENT_BYTES,
    ) -> None:
        self._declaration = declaration
        self._sink = ChunkSink(declaration, direct)
        self._make = making
        self._made: dict[int, Making] = {}
        self._columns = Columns(declaration.source.key)
        self._content_bytes = content_bytes
        self._statements: dict[int, Statements] = {}

    @property
    def declaration(self) -> Declaration:
        return self._declaration

    @property
    def sink(self) -> ChunkSink:
        return self._sink

    async def load(
        self, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        statements = self._bound(target)
        rows = await self._read(conn, statements, keys)
        items: list[Item] = []
        deferred: list[Key] = []
        changed: list[tuple[Key, bytes, Sequence[str | None], int]] = []
        for place, present, hash, size, *values in rows:
            key = keys[place - 1]
            if not present:
                deferred.append(key)
            elif stamped.get(key) == hash:
                items.append(Item(key, hash, None))
            else:
                changed.append((key, hash, values, size))
        if changed:
            splitting = self.making(target)
            texts = [values for _, _, values, _ in changed]
            if sum(map(itemgetter(3), changed)) > _THREAD_BYTES:
                prepared = await asyncio.to_thread(_prepare, splitting, texts)
            else:
                prepared = _prepare(splitting, texts)
            earlier = [place for place, (key, *_) in enumerate(changed) if key in stamped]
            reusable = await self._existing(conn, statements, [changed[place][0] for place in earlier])
            for place, hashes in zip(earlier, reusable, strict=True):
                text = prepared[place]
                prepared[place] = text._replace(reusable=frozenset(hashes & text.texts.keys()))
            items += [
                Item(key, hash, text, size)
                for (key, hash, _, size), text in zip(changed, prepared, strict=True)
            ]
        return Loaded(items, deferred)

    async def compute(self, target: Target, items: Sequence[Item]) -> Sequence[Output | Permanent]:
        making = self.making(target)
        rows: dict[bytes, int] = {}  # hash of a text → its row among the vectors
        texts: list[str] = []
        for item in items:
            prepared: PreparedText = item.content
            for digest, text in prepared.texts.items():
                if digest not in rows and digest not in prepared.reusable:
                    rows[digest] = len(texts)
                    texts.append(making.document_prefix + text)
        dimensions = int(target.spec["dimensions"])
        embedded = await making.embedder.embed(texts) if texts else _nothing(dimensions)
        self._check(target, embedded.vectors, dimensions)
        failures = dict(embedded.failures)
        if target.spec["type"] == "halfvec" and texts:
            failures = {**_out_of_range(embedded.vectors), **failures}
        return [_output(item, rows, embedded, failures) for item in items]

    async def probe(self, target: Target) -> None:
        await self.making(target).embedder.probe()

    def making(self, target: Target) -> Making:
        made = self._made.get(target.id)
        if made is None:
            try:
                made = self._made[target.id] = self._make(target)
            except Refused as error:  # it was well when the target was made: the settings are others now
                raise Configuration(
                    f"{target.derivation} was made with another model than INSTEP_EMBED_PROVIDER names: {error}",
                    setting="INSTEP_EMBED_PROVIDER",
                    hint="set INSTEP_EMBED_PROVIDER and INSTEP_EMBED_URL as they were when the table was added",
                ) from error
        return made

    async def _read(self, conn: Conn, statements: Statements, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """(place, present, hash, size, text of each column) of what is eligible, in order; what does not fit a wave's
        memory is not present."""
        parameters = key_arrays(self._columns, keys)
        short = {**parameters, "each": self._content_bytes // max(1, len(keys))}
        rows = await (await conn.execute(statements["load_short"], short, binary=True)).fetchall()
        if not all(row[1] for row in rows):
            bounded = {**parameters, "limit": self._content_bytes}
            rows = await (await conn.execute(statements["load"], bounded, binary=True)).fetchall()
        rows.sort(key=itemgetter(0))
        return rows

    async def _existing(
        self, conn: Conn, statements: Statements, keys: Sequence[Key]
    ) -> list[frozenset[bytes]]:
        """The hashes of the texts that each key's chunks hold now."""
        if not keys:
            return []
        parameters = key_arrays(self._columns, keys)
        found: list[set[bytes]] = [set() for _ in keys]
        rows = await (await conn.execute(statements["existing"], parameters, binary=True)).fetchall()
        for place, digest in rows:
            found[place - 1].add(digest)
        return [frozenset(hashes) for hashes in found]

    def _check(self, target: Target, vectors: Vectors, dimensions: int) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != dimensions:
            raise Configuration(
                f"the model gives vectors of {vectors.shape[-1]} dimensions, target {target.name} of "
                f"{self._declaration.name} holds {dimensions}",
                setting="INSTEP_EMBED_MODEL",
                hint="point INSTEP_EMBED_MODEL and INSTEP_EMBED_URL at the model that the target names",
            )

    def _bound(self, target: Target) -> Statements:
        bound = self._statements.get(target.id)
        if bound is None:
            bound = self._statements[target.id] = Statements(
                "instep.chunks", "derivation.sql", **self._fragments(target)
            )
        return bound

    def _fragments(self, target: Target) -> dict[str, sql.Composable]:
        declaration, columns = self._declaration, self._columns
        values = [sql.SQL("{}::text").format(quoted(name)) for name in declaration.options["text"]]
        names = [fragment(f"text_{place}") for place in range(1, len(values) + 1)]
        over = {
            "selected_key": columns.selected("a"),
            "relation": quoted(declaration.source.schema, declaration.source.table),
        }
        sizes = [sql.SQL("coalesce(octet_length({}), 0)").format(value) for value in values]
        size = sql.SQL("(") + sql.SQL(" + ").join(sizes) + sql.SQL(")")
        file = ("instep.chunks", "derivation.sql")
        eligible, hash = fragment(declaration.eligible), fragment(declaration.hash)
        short_columns = [
            compose(*file, "short_column", size=size, value=value, name=name)
            for value, name in zip(values, names, strict=True)
        ]
        return {
            "chunk": chunk_tables(declaration, target).chunk,
            "keys_placed": placed(columns),
            "key_k": columns.listed("k"),
            "on_s_k": columns.equal("s", "k"),
            "on_c_k": columns.equal("c", "k"),
            "on_c_z": columns.equal("c", "z"),
            "texts": sql.SQL(", ").join(sql.SQL("c.{}").format(name) for name in names),
            "texts_s": sql.SQL(", ").join(sql.SQL("s.{}").format(name) for name in names),
            "short": compose(
                *file,
                "short",
                eligible=eligible,
                hash=hash,
                size=size,
                short_columns=sql.SQL(", ").join(short_columns),
                **over,
            ),
            "sizes": compose(*file, "sizes", eligible=eligible, size=size, **over),
            "contents": compose(
                *file,
                "contents",
                hash=hash,
                columns=sql.SQL(", ").join(
                    sql.SQL("{} as {}").format(value, name) for value, name in zip(values, names, strict=True)
                ),
                **over,
            ),
        }


_EMPTY = PreparedText((), (), (), {})
_AT_START = (0,)


def _prepare(making: Making, rows: Sequence[Sequence[str | None]]) -> list[PreparedText]:
    prefix, limit = making.document_prefix, whole_limit(making.splitter)
    texts = [entity_text(values) for values in rows]
    longer = iter(making.splitter.split_many([text for text in texts if len(text) > limit]))
    prepared = []
    for text in texts:
        if not text:
            prepared.append(_EMPTY)
        elif len(text) <= limit:
            digest = sha256((prefix + text).encode()).digest()
            prepared.append(PreparedText((digest,), _AT_START, (len(text),), {digest: text}))
        else:
            chunks = next(longer)
            hashes = tuple([sha256((prefix + chunk.text).encode()).digest() for chunk in chunks])
            starts, ends = tuple([chunk.start for chunk in chunks]), tuple([chunk.end for chunk in chunks])
            held = {digest: chunk.text for digest, chunk in zip(hashes, chunks, strict=True)}
            prepared.append(PreparedText(hashes, starts, ends, held))
    return prepared


def text_hashes(making: Making, values: Sequence[str | None]) -> set[bytes]:
    """The hashes of the chunks that a row with these text columns has: tells whether a found chunk is of today."""
    return set(_prepare(making, [values])[0].hashes)


def _output(
    item: Item, rows: Mapping[bytes, int], embedded: Embedded, failures: Mapping[int, Permanent]
) -> Output | Permanent:
    prepared: PreparedText = item.content
    hashes, starts, ends, texts, reusable = prepared
    if len(hashes) == 1 and not reusable:
        return _output_of_one(item, rows[hashes[0]], embedded, failures)
    fresh = {digest: texts[digest] for digest in texts if digest not in reusable} if reusable else texts
    places = [rows[digest] for digest in fresh]
    if failures:
        for place, digest in zip(places, fresh, strict=True):
            if place in failures:
                return _of_chunk(failures[place], prepared, digest)
    whole = len(hashes) == 1 and starts[0] == 0 and ends[0] == len(texts[hashes[0]])
    chunks = EntityChunks(hashes, starts, ends, fresh, embedded.vectors, places, whole)
    truncated = sum(place in embedded.truncated for place in places) if embedded.truncated else 0
    return Output(item.key, item.hash, chunks, len(reusable), truncated)


def _output_of_one(
    item: Item, place: int, embedded: Embedded, failures: Mapping[int, Permanent]
) -> Output | Permanent:
    """Of an entity that is one chunk: most of them, and three times as fast."""
    if place in failures:
        return failures[place]
    hashes, starts, ends, texts, _ = item.content
    whole = starts[0] == 0 and ends[0] == len(texts[hashes[0]])
    chunks = EntityChunks(hashes, starts, ends, texts, embedded.vectors, (place,), whole)
    return Output(item.key, item.hash, chunks, 0, int(place in embedded.truncated))


def _of_chunk(failure: Permanent, prepared: PreparedText, digest: bytes) -> Permanent:
    """The server's word for one text, with the chunk's place where there are several."""
    if len(prepared.hashes) == 1:
        return failure
    ordinal, characters = prepared.hashes.index(digest), len(prepared.texts[digest])
    return Permanent(
        f"{failure} for chunk {ordinal + 1} of {len(prepared.hashes)} ({characters:,} characters)",
        kind=failure.kind,
        hint=failure.hint,
    )


def _out_of_range(vectors: Vectors) -> dict[int, Permanent]:
    bad = np.flatnonzero(np.abs(vectors).max(axis=1) > _LARGEST_HALF)
    return {
        int(row): Permanent(
            f"the vector holds a number beyond {_LARGEST_HALF:,.0f}, which halfvec cannot",
            kind="vector out of range",
        )
        for row in bad
    }


def _nothing(dimensions: int) -> Embedded:
    return Embedded(np.empty((0, dimensions), dtype=np.float32), {}, frozenset())
