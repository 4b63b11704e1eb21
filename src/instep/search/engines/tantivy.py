"""The embedded lexical engine: a tantivy index in a directory, written by one process, read by any.

- What is committed is seen by the next search of any process: each search opens the index anew (half a millisecond).
- The epoch of the last `apply` is a document of its own, changed in the same commit: it cannot differ from the rest.
- Nothing but keys is stored: snippets come from the row as it is now.
Tests: unit/test_search_tantivy.py, and the suite in `instep.testing.index_suite`.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import tantivy
from tantivy import Occur

from instep import failpoints
from instep.engine.declaration import Key, KeyColumn
from instep.errors import Outage
from instep.search.columns import MOMENTS, Column
from instep.search.engines.tantivy_filter import PRESENT, field_name, filter_query
from instep.search.ports import FACET_VALUES, Document, Facet, Hit, Hits, Query

HEAP_BYTES = 50_000_000
_EPOCH = "epoch"  # the key of the epoch's document; the others are JSON arrays
_HOLDER = "held-by"
_FACET_CANDIDATES = 1_000  # values counted before the best are chosen: exact up to that many distinct ones
_PAGE = 10_000


class TantivyIndex:
    """The index of one target. `columns` are the filter columns, `key` gives the types that keys have.

    Methods may be called from any task: the writer is used by one thread at a time.
    """

    def __init__(self, path: Path, key: Sequence[KeyColumn], columns: Sequence[Column] = ()) -> None:
        self.path = path
        self._uuids = tuple(column.type == "uuid" for column in key)
        self._columns = tuple(columns)
        self._writer: tantivy.IndexWriter | None = None
        self._lock = threading.Lock()

    async def create(self, epoch: int) -> None:
        """An empty index with this epoch, in the place of whatever was there. Raises Outage if it cannot be written
        or is held by another process."""
        await asyncio.to_thread(self._create, epoch)

    async def epoch(self) -> int | None:
        """The epoch of the last commit; None where the index is missing, damaged or of another shape."""
        return await asyncio.to_thread(self._read_epoch)

    async def apply(self, epoch: int, remove: Sequence[Key], add: Sequence[Document]) -> None:
        await asyncio.to_thread(self._apply, epoch, remove, add)

    async def search(self, query: Query) -> Hits:
        return await asyncio.to_thread(self._search, query)

    async def matching(self, query: Query, after: Key | None) -> Sequence[Key]:
        """Reads the keys of all hits: it costs what there are, not what is asked for."""
        return await asyncio.to_thread(self._matching, query, after)

    async def keys(self) -> AsyncIterator[Key]:
        searcher, offset = await asyncio.to_thread(self._searcher), 0
        while page := await asyncio.to_thread(self._keys, searcher, offset):
            for key in page:
                if key is not None:
                    yield key
            offset += _PAGE

    async def probe(self) -> None:
        """Raises Outage where the index cannot be written now."""
        await asyncio.to_thread(self._probe)

    async def close(self) -> None:
        """Let merges end and give the writer's lock back. The index can be used again afterwards."""
        await asyncio.to_thread(self._close)

    async def drop(self) -> None:
        await asyncio.to_thread(self._drop)

    def _schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("key", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
        builder.add_integer_field(_EPOCH, stored=True)
        for column in self._columns:
            name = field_name(column)
            if column.kind == "integer" or column.kind in MOMENTS:
                builder.add_integer_field(name, indexed=True, fast=True)
            elif column.kind == "number":
                builder.add_float_field(name, indexed=True, fast=True)
            elif column.kind == "boolean":
                builder.add_boolean_field(name, indexed=True, fast=True)
            else:
                builder.add_text_field(name, fast=True, tokenizer_name="raw", index_option="basic")
        return builder.build()

    def _register(self, index: tantivy.Index) -> tantivy.Index:
        analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
        index.register_tokenizer("whitespace", analyzer)
        return index

    def _open(self) -> tantivy.Index:
        return self._register(tantivy.Index.open(str(self.path)))

    @contextmanager
    def _trouble(self, doing: str) -> Iterator[None]:
        """The binding raises ValueError for whatever the engine says: nothing of it is one document's fault."""
        try:
            yield
        except (ValueError, OSError) as error:
            if "LockBusy" in str(error):
                raise Outage(
                    f"the lexical index {self.path} is held by {self._holder()}",
                    hint="one process writes an index at a time: wait for it, or end it",
                ) from error
            raise Outage(f"the lexical index {self.path} cannot be {doing}: {error}") from error

    def _holder(self) -> str:
        try:
            return (self.path / _HOLDER).read_text().strip()
        except OSError:
            return "another process"

    def _open_writer(self) -> tantivy.IndexWriter:
        if self._writer is None:
            writer = self._open().writer(HEAP_BYTES, 1)
            (self.path / _HOLDER).write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
            self._writer = writer
        return self._writer

    def _create(self, epoch: int) -> None:
        with self._lock, self._trouble("made"):
            self._close_writer()
            if self.path.is_dir():
                self._refuse_if_held()
            fresh, old = self._leftovers()
            for leftover in (fresh, old):
                if leftover.exists():
                    shutil.rmtree(leftover)
            fresh.mkdir(parents=True)
            writer = self._register(tantivy.Index(self._schema(), path=str(fresh))).writer(HEAP_BYTES, 1)
            self._stamp(writer, epoch)
            writer.commit()
            writer.wait_merging_threads()
            if self.path.exists():
                self.path.rename(old)
                failpoints.reach("search_index.swapped")
            fresh.rename(self.path)
            if old.exists():
                shutil.rmtree(old)

    def _leftovers(self) -> tuple[Path, Path]:
        """Where a new index is made, and where the one that it replaces is put, before the names are switched."""
        return self.path.with_name(f"{self.path.name}.new"), self.path.with_name(f"{self.path.name}.old")

    def _refuse_if_held(self) -> None:
        try:
            self._open().writer(HEAP_BYTES, 1)
        except ValueError as error:
            if "LockBusy" in str(error):
                raise
            # Any other trouble is why it is made anew.

    def _stamp(self, writer: tantivy.IndexWriter, epoch: int) -> None:
        writer.delete_documents_by_term("key", _EPOCH)
        stamp = tantivy.Document()
        stamp.add_text("key", _EPOCH)
        stamp.add_integer(_EPOCH, epoch)
        writer.add_document(stamp)

    def _read_epoch(self) -> int | None:
        try:
            index = self._open()
            searcher = index.searcher()
            for column in self._columns:  # an index of another shape does not know the field, and says so
                searcher.search(tantivy.Query.exists_query(field_name(column)), 1, count=False)
            query = tantivy.Query.term_query(index.schema, "key", _EPOCH, "basic")
            found = searcher.search(query, 1).hits
            value = searcher.doc(found[0][1]).get_first(_EPOCH) if found else None
            return None if value is None else int(value)
        except (ValueError, OSError):
            return None

    def _apply(self, epoch: int, remove: Sequence[Key], add: Sequence[Document]) -> None:
        with self._lock, self._trouble("written"):
            writer = self._open_writer()
            try:
                for key in (*remove, *(document.key for document in add)):
                    writer.delete_documents_by_term("key", encode_key(key))
                for document in add:
                    writer.add_document(self._document(document))
                self._stamp(writer, epoch)
                failpoints.reach("search_index.added")
                writer.commit()
                failpoints.reach("search_index.committed")
            except BaseException:
                # What a failed apply left in the writer must not be in the next commit.
                self._writer = None
                writer.rollback()
                self._writer = writer
                raise

    def _document(self, document: Document) -> tantivy.Document:
        made = tantivy.Document()
        made.add_text("key", encode_key(document.key))
        made.add_text("words", document.words)
        for column in self._columns:
            value = document.fields.get(column.name)
            if value is None:
                continue
            name = field_name(column)
            if column.kind == "texts":
                made.add_text(name, PRESENT)
                for element in dict.fromkeys(value):
                    if element is not None:
                        made.add_text(name, element)
            elif column.kind == "integer" or column.kind in MOMENTS:
                made.add_integer(name, value)
            elif column.kind == "number":
                made.add_float(name, value)
            elif column.kind == "boolean":
                made.add_boolean(name, value)
            else:
                made.add_text(name, value)
        return made

    def _searcher(self) -> tantivy.Searcher:
        with self._trouble("read"):
            return self._open().searcher()

    def _search(self, query: Query) -> Hits:
        if not query.terms:
            return Hits((), 0)
        with self._trouble("read"):
            index = self._open()
            searcher = index.searcher()
            wanted = self._query(index.schema, query)
            found = searcher.search(wanted, max(1, query.limit))
            hits = [
                Hit(self._decode(searcher.doc(address).get_first("key")), float(score))
                for score, address in found.hits[: query.limit]
            ]
            facets = self._facets(searcher, wanted) if query.facets and self._columns else {}
            return Hits(hits, int(found.count), facets)

    def _matching(self, query: Query, after: Key | None) -> Sequence[Key]:
        if not query.terms:
            return ()
        with self._trouble("read"):
            index = self._open()
            searcher = index.searcher()
            found = searcher.search(self._query(index.schema, query), max(1, searcher.num_docs), count=False)
            keys = (self._decode(searcher.doc(address).get_first("key")) for _, address in found.hits)
            return heapq.nsmallest(query.limit, (key for key in keys if after is None or key > after))

    def _query(self, schema: tantivy.Schema, query: Query) -> tantivy.Query:
        occur = Occur.Must if query.match == "all" else Occur.Should
        matched = tantivy.Query.boolean_query([(occur, self._word(schema, word)) for word in query.terms])
        if query.filter is None:
            return matched
        # A filter chooses; it must not add to the score.
        chosen = tantivy.Query.const_score_query(filter_query(schema, query.filter), 0.0)
        return tantivy.Query.boolean_query([(Occur.Must, matched), (Occur.Must, chosen)])

    def _word(self, schema: tantivy.Schema, tokens: Sequence[str]) -> tantivy.Query:
        found = [tantivy.Query.term_query(schema, "words", token, "freq") for token in tokens]
        return found[0] if len(found) == 1 else tantivy.Query.boolean_query([(Occur.Must, q) for q in found])

    def _facets(self, searcher: tantivy.Searcher, query: tantivy.Query) -> Mapping[str, Sequence[Facet]]:
        aggregations = {
            str(number): {
                "terms": {
                    "field": field_name(column),
                    "size": _FACET_CANDIDATES,
                    "segment_size": _FACET_CANDIDATES,
                }
            }
            for number, column in enumerate(self._columns)
        }
        answer = searcher.aggregate(query, aggregations)
        facets: dict[str, Sequence[Facet]] = {}
        for number, column in enumerate(self._columns):
            counted = [
                Facet(column.decode(bucket["key"]), int(bucket["doc_count"]))
                for bucket in answer[str(number)]["buckets"]
                if bucket["key"] != PRESENT
            ]
            counted.sort(key=lambda facet: (-facet.count, facet.value))
            facets[column.name] = counted[:FACET_VALUES]
        return facets

    def _keys(self, searcher: tantivy.Searcher, offset: int) -> list[Key | None]:
        found = searcher.search(tantivy.Query.all_query(), _PAGE, count=False, offset=offset).hits
        stored = (searcher.doc(address).get_first("key") for _, address in found)
        return [None if key == _EPOCH else self._decode(key) for key in stored]

    def _decode(self, stored: Any) -> Key:
        values = orjson.loads(stored)
        return tuple(
            UUID(value) if is_uuid else value for value, is_uuid in zip(values, self._uuids, strict=True)
        )

    def _probe(self) -> None:
        with self._lock, self._trouble("written"):
            self._open_writer()

    def _close(self) -> None:
        with self._lock, self._trouble("closed"):
            self._close_writer()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.wait_merging_threads()

    def _drop(self) -> None:
        with self._lock, self._trouble("removed"):
            self._close_writer()
            for path in (self.path, *self._leftovers()):
                if path.exists():
                    shutil.rmtree(path)


def encode_key(key: Key) -> str:
    """A key as the index keeps it: a JSON array."""
    return orjson.dumps(key).decode()
