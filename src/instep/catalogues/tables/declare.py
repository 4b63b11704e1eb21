"""From options and a relation to the two derivations of a table, `NAME.embed` and `NAME.search`, and their targets.

Everything that can be refused is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from psycopg import sql

from instep.catalogues.tables.conditions import condition_columns
from instep.catalogues.tables.model import EmbeddingModel, embed_target
from instep.catalogues.tables.options import CATALOGUE, TableOptions, source_name
from instep.catalogues.tables.refusals import newest_column, refuse_relation, text_columns, watchable
from instep.chunks.vector_type import pgvector_schema
from instep.database.statements import compose
from instep.engine.declaration import Declaration, Source, Target
from instep.engine.declared import source_names, source_of_relation
from instep.engine.ports import Conn
from instep.engine.relations import Relation, inspect
from instep.errors import Refused
from instep.search.columns import read_columns
from instep.search.derivation import target_name

EMBED_BIT, SEARCH_BIT = 1, 2
ENGINES = ("tantivy", "postgres")
_PACKAGE, _FILE = "instep.catalogues.tables", "declare.sql"


@dataclass(frozen=True, slots=True)
class Declared:
    """What `instep tables add` would make. `targets` have no ids yet."""

    relation: Relation
    source: Source
    embed: Declaration
    search: Declaration
    embed_target: Target
    search_target: Target

    @property
    def declarations(self) -> tuple[Declaration, Declaration]:
        return self.embed, self.search

    @property
    def targets(self) -> tuple[Target, Target]:
        return self.embed_target, self.search_target


async def declare(conn: Conn, options: TableOptions, model: EmbeddingModel) -> Declared:
    """Check everything and put it together; writes nothing. Raises Refused for what cannot be kept in step, and what
    the model raises when it is asked for its dimensions (last, when the rest was found good)."""
    relation = await inspect(conn, options.table)
    refuse_relation(relation)
    assert relation.key is not None  # refused above
    texts = text_columns(relation, options.text)
    newest = newest_column(relation, options.newest) if options.newest else None
    for name in (*options.filters, *options.show):
        watchable(relation, name)
    if options.engine not in ENGINES:
        raise Refused(f"--engine is {options.engine!r}: it takes {' or '.join(ENGINES)}.")
    name = source_name(options, relation.table)
    await _refuse_taken(conn, name, relation)
    source = Source(name, relation.oid, relation.schema, relation.table, relation.key)
    await read_columns(conn, source, options.filters)  # refuses types that no filter understands
    conditional = await condition_columns(conn, relation, options.where) if options.where else ()
    for column in conditional:
        watchable(relation, column)
    await pgvector_schema(conn)

    text = [column.name for column in texts]
    copied = [*options.filters, *(column for column in options.show if column not in options.filters)]
    ordering = [newest.name] if newest else []
    target = await embed_target(options, model, f"{name}.embed")

    def declaration(kind: str, bit: int, hashed: Sequence[str], more: Mapping[str, object]) -> Declaration:
        return Declaration(
            f"{name}.{kind}",
            source,
            bit,
            tuple(dict.fromkeys([*hashed, *conditional, *ordering])),
            content_hash(hashed),
            options.where or "true",
            sql.Identifier(newest.name).as_string(None) if newest else "",
            CATALOGUE,
            {"text": text, "newest": options.newest, **more},
        )

    search_options = {"filters": list(options.filters), "show": list(options.show), "engine": options.engine}
    embed = declaration("embed", EMBED_BIT, text, {})
    search = declaration("search", SEARCH_BIT, [*text, *(c for c in copied if c not in text)], search_options)
    searching = Target(0, search.name, target_name(options.engine), "reading", {"engine": options.engine})
    return Declared(relation, source, embed, search, target, searching)


def content_hash(columns: Sequence[str]) -> str:
    """SQL: the hash of the columns' texts, their lengths and NULLs told apart."""
    parts = [compose(_PACKAGE, _FILE, "part", column=sql.Identifier(name)) for name in columns]
    joined = reduce(lambda left, right: compose(_PACKAGE, _FILE, "both", left=left, right=right), parts)
    return compose(_PACKAGE, _FILE, "content_hash", parts=joined).as_string(None)


async def _refuse_taken(conn: Conn, name: str, relation: Relation) -> None:
    """One table is one source, one name one table. The same pair again is not refused here: `tables.add` compares."""
    mine = await source_of_relation(conn, relation.oid)
    if mine is not None and mine != name:
        raise Refused(
            f"{relation.name} is already added, as {mine}.",
            hint=f"instep tables show {mine}, or first: instep tables remove {mine}",
        )
    if mine is None and name in await source_names(conn):
        raise Refused(f"The name {name} belongs to another table.", hint="Give another with --name.")
