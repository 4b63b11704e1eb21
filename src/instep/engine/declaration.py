"""What a derivation is, in data: its source, key, conditions, hash and targets.

Declarations are stored as rows (`instep.source`, `instep.derivation`, `instep.target`), so that status, metrics
and pause know a derivation without importing its code. Everything here is pure: no connection, no clock.

Our own tables name the key columns `key_1`, `key_2`, … whatever the source calls them, in the source's own types
and collations: a source column named `target` or `token` then collides with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from instep.database.arrays import PackedArray, packs
from instep.database.statements import fragment

SCHEMA = "instep"
MAX_NAME = 40

Key = tuple[Any, ...]
"""A key is always a tuple, of one value for each key column (int, str or uuid.UUID)."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    name: str  # the source's column
    type: str  # as format_type prints it: bigint, integer, smallint, uuid, text, character varying(20)
    collation: str = ""  # quoted and qualified, where it is not the type's default

    @property
    def declared(self) -> str:
        return f"{self.type} collate {self.collation}" if self.collation else self.type


@dataclass(frozen=True, slots=True)
class Source:
    """A table from which something is derived, a user's or (a chain) the output of another derivation; held by its OID:
    `schema` and `table` are what it is called now."""

    name: str  # ours: names the change log
    oid: int
    schema: str
    table: str
    key: tuple[KeyColumn, ...]
    parts: tuple[str, ...] = ()
    """Columns that, after the key's, tell one row where several rows make one entity: ("text_hash",) of a chunk table."""

    @property
    def relation(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def change(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, f"change_{self.name}")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One derivation. `eligible`, `hash` and `newest` are SQL over the source's columns, unqualified and in no
    other scope: eligible is a condition (NULL counts as false), hash gives bytea, newest gives a timestamptz. Where
    several rows make one entity, they are said of one row (`source_rows` says what follows for the entity)."""

    name: str  # "articles.embed"
    source: Source
    bit: int  # 1, 2, 4 …: this derivation's place in the change log's mask
    watch: tuple[str, ...]  # columns whose change makes work (text, condition and sort columns)
    hash: str
    eligible: str = "true"
    newest: str = ""  # empty: the source has no notion of newest
    catalogue: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        return self.name.replace(".", "_")

    @property
    def outbox(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, f"outbox_{self.suffix}")

    @property
    def stamp(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, f"stamp_{self.suffix}")


@dataclass(frozen=True, slots=True)
class Target:
    """The identity of how an output is made. `spec` is what the catalogue needs to make it again."""

    id: int
    derivation: str
    name: str  # "all-MiniLM-L6-v2-chunked-256t-v1"
    state: str  # reading | filling | kept | retired
    spec: Mapping[str, Any] = field(default_factory=dict)


class Columns:
    """SQL fragments over the key columns, for statement templates: see `fragments`."""

    def __init__(self, key: Sequence[KeyColumn]) -> None:
        self.key = tuple(key)
        self.names = tuple(f"key_{i}" for i in range(1, len(self.key) + 1))

    def listed(self, alias: str = "", order: str = "") -> sql.Composed:
        """`a.key_1 desc, a.key_2 desc` for alias "a" and order "desc"."""
        prefix = f"{alias}." if alias else ""
        return sql.SQL(", ").join(fragment(f"{prefix}{name} {order}".rstrip()) for name in self.names)

    def definitions(self) -> sql.Composed:
        """`key_1 bigint not null, key_2 text not null`: for CREATE TABLE."""
        return sql.SQL(", ").join(
            fragment(f"{name} {column.declared} not null")
            for name, column in zip(self.names, self.key, strict=True)
        )

    def equal(self, left: str, right: str) -> sql.Composed:
        """`a.key_1 = b.key_1 and …`."""
        return sql.SQL(" and ").join(fragment(f"{left}.{name} = {right}.{name}") for name in self.names)

    def selected(self, alias: str = "a") -> sql.Composed:
        """`a."id" as key_1, …`: the source's own key columns under our names."""
        return sql.SQL(", ").join(
            sql.SQL("{}.{} as {}").format(sql.Identifier(alias), quoted(c.name), sql.Identifier(name))
            for name, c in zip(self.names, self.key, strict=True)
        )

    def unnest(self, *more: tuple[str, str]) -> sql.Composed:
        """`unnest(%(key_1)s::bigint[], …, %(hash)s::bytea[]) as k(key_1, …, hash)`, fed by `arrays` and further
        (name, type) columns. Casts are written out: psycopg picks the smallest type by value, and plans multiply."""
        arrays = [
            f"%({name})s::{array_type(column.type)}"
            for name, column in zip(self.names, self.key, strict=True)
        ]
        arrays += [f"%({name})s::{type}[]" for name, type in more]
        names = ", ".join((*self.names, *(name for name, _ in more)))
        return sql.SQL("unnest({}) as k({})").format(raw(", ".join(arrays)), raw(names))

    def values(self, prefix: str = "") -> sql.Composed:
        """`%(key_1)s::bigint, …`: one key as parameters, fed by `one`."""
        return sql.SQL(", ").join(
            raw(f"%({prefix}{name})s::{column.type}")
            for name, column in zip(self.names, self.key, strict=True)
        )

    def arrays(self, keys: Iterable[Key]) -> dict[str, Any]:
        """Keys as the parameters of `unnest`: one for each column."""
        columns = list(zip(*keys, strict=True)) or [()] * len(self.names)
        return {
            name: PackedArray(column.type, values) if packs(column.type) else list(values)
            for name, column, values in zip(self.names, self.key, columns, strict=True)
        }

    def one(self, key: Key, prefix: str = "") -> dict[str, Any]:
        return {f"{prefix}{name}": value for name, value in zip(self.names, key, strict=True)}


def quoted(*names: str) -> sql.SQL:
    """A quoted, perhaps qualified name of the user's, for a template that is executed with parameters: psycopg reads
    the per cent sign in a name too."""
    return fragment(sql.Identifier(*names).as_string(None))


def raw(text: str) -> sql.SQL:
    """SQL of our own with placeholders in it: nothing is escaped."""
    return sql.SQL(text)


def array_type(type: str) -> str:
    """Array type for a key type; a length modifier is dropped, it has no meaning for a comparison."""
    return f"{type.split('(')[0]}[]"


def source_rows(declaration: Declaration) -> sql.Composed:
    """A subquery over the source with our column names: `(select a."id" as key_1, (…) is true as eligible,
    … as content_hash, … as sort_key from "public"."articles" as a)`. Only the source is in its scope, so the
    user's unqualified column names mean his columns and nothing of ours. Where several rows make one entity, the
    eligible ones make it: their hashes in order give its hash, the newest of them its sort key."""
    rows = _rows(declaration)
    return _grouped(declaration, rows) if declaration.source.parts else rows


def source_at(declaration: Declaration, alias: str, keys: str) -> sql.Composed:
    """What follows `join` or `left join` to get the source's row of each key of `keys`: `(…) as a on a.key_1 = k.key_1`.
    No join condition reaches into a grouping, so there the key is compared inside, key by key."""
    columns = Columns(declaration.source.key)
    if not declaration.source.parts:
        return sql.SQL("{} as {} on {}").format(
            source_rows(declaration), fragment(alias), columns.equal(alias, keys)
        )
    wanted = sql.SQL(" and ").join(
        sql.SQL("a.{} = {}").format(quoted(column.name), fragment(f"{keys}.{name}"))
        for name, column in zip(columns.names, declaration.source.key, strict=True)
    )
    rows = _grouped(declaration, _rows(declaration, wanted))
    return sql.SQL("lateral {} as {} on true").format(rows, fragment(alias))


def _rows(declaration: Declaration, wanted: sql.Composable | None = None) -> sql.Composed:
    newest = (
        f"coalesce(({declaration.newest})::timestamptz, '-infinity')"
        if declaration.newest
        else "'-infinity'::timestamptz"
    )
    return sql.SQL(
        "(select {key}, ({eligible}) is true as eligible, {hash} as content_hash, {newest} as sort_key from {relation} as a{where})"
    ).format(
        key=Columns(declaration.source.key).selected("a"),
        eligible=fragment(declaration.eligible),
        hash=fragment(declaration.hash),
        newest=fragment(newest),
        relation=quoted(declaration.source.schema, declaration.source.table),
        where=sql.SQL(" where {}").format(wanted) if wanted else sql.SQL(""),
    )


def _grouped(declaration: Declaration, rows: sql.Composable) -> sql.Composed:
    return sql.SQL(
        "(select {key}, bool_or(r.eligible) as eligible,"
        " instep.content_hash(string_agg({hash}, ',' order by {hash}) filter (where r.eligible)) as content_hash,"
        " max(r.sort_key) filter (where r.eligible) as sort_key from {rows} as r group by {key})"
    ).format(
        key=Columns(declaration.source.key).listed("r"),
        rows=rows,
        # Written once, as argument and as order: PostgreSQL then computes each row's hash once.
        hash=fragment("coalesce(encode(r.content_hash, 'hex'), 'null') collate \"C\""),
    )


def fragments(declaration: Declaration) -> dict[str, sql.Composable]:
    """The fragments that the engine's templates of one derivation may use."""
    columns = Columns(declaration.source.key)
    return {
        "change": declaration.source.change,
        "outbox": declaration.outbox,
        "stamp": declaration.stamp,
        "relation": quoted(declaration.source.schema, declaration.source.table),
        "source_rows": source_rows(declaration),
        **{f"source_{a}_{keys}": source_at(declaration, a, keys) for a, keys in ("sg", "am", "ak")},
        "key": columns.listed(),
        "key_definitions": columns.definitions(),
        "key_desc": columns.listed(order="desc"),
        "key_unnest": columns.unnest(),
        "key_values": columns.values(),
        **{f"key_{alias}": columns.listed(alias) for alias in "agklosdtcn"},
        **{
            f"on_{left}_{right}": columns.equal(left, right)
            for left, right in (
                "ak",
                "ok",
                "sk",
                "ag",
                "so",
                "oc",
                "sa",
                "oa",
                "os",
                "od",
                "kd",
                "ck",
                "gd",
                "cd",
            )
        },
    }
