"""A user's table in every shape, and a tiny reference loop that works an outbox: what the tests of finding work
stand on. The loop is plain SQL and shares nothing with the engine's own commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from instep.engine.absorb import Absorbed, Absorber
from instep.engine.declaration import Columns, Declaration, Key, KeyColumn, Source, Target, fragments, quoted
from instep.engine.install import Installed, install
from instep.engine.sweep import Piece, Sweeper, due

KEYS: dict[str, list[str]] = {
    "bigint": ["bigint"],
    "integer": ["integer"],
    "uuid": ["uuid"],
    "text": ["text"],
    "composite": ["text", "integer"],
}
SHAPES = ("plain", "quoted", "other_schema", "partitioned")


def value(type: str, number: int) -> Any:
    if type == "uuid":
        return uuid.UUID(int=number)
    return f"k'{number:04}\\" if type == "text" else number


@dataclass
class Scene:
    conn: Any
    source: Source
    declarations: tuple[Declaration, ...]
    targets: tuple[Target, ...] = ()

    @property
    def embed(self) -> Declaration:
        return self.declarations[0]

    @property
    def table(self) -> sql.Identifier:
        return self.source.relation

    def key(self, number: int) -> Key:
        return tuple(value(c.type, number) for c in self.source.key)

    async def run(self, statement: str, *values: Any, **names: sql.Composable) -> list[tuple[Any, ...]]:
        """A user's statement; `{table}`, `{key}` (its columns), `{is}` (`key = %s …`) are filled in."""
        columns = [quoted(c.name) for c in self.source.key]
        places = sql.SQL(", ").join(sql.SQL("%s") for _ in columns)
        key = sql.SQL(", ").join(columns)
        text = sql.SQL(statement).format(
            table=quoted(self.source.schema, self.source.table),
            key=key,
            values=places,
            **{"is": sql.SQL("({}) = ({})").format(key, places)},
            **names,
        )
        cursor = await self.conn.execute(text, values)
        return await cursor.fetchall() if cursor.description else []

    async def put(self, *numbers: int, text: str = "text") -> None:
        for number in numbers:
            await self.run(
                "insert into {table} ({key}, body) values ({values}, %s)",
                *self.key(number),
                f"{text} {number}",
            )

    async def install(self) -> Installed:
        targets = [Target(0, d.name, "t1", "reading") for d in self.declarations]
        installed = await install(self.conn, self.source, self.declarations, targets)
        self.targets = installed.targets
        return installed

    async def log(self) -> list[tuple[Any, ...]]:
        """What is in the change log: (key, mask), sorted."""
        statement = sql.SQL("select {}, derivations from {} order by seq").format(
            Columns(self.source.key).listed(), self.source.change
        )
        return [(row[:-1], row[-1]) for row in await (await self.conn.execute(statement)).fetchall()]

    async def entries(
        self, columns: str, declaration: Declaration | None = None
    ) -> dict[Key, tuple[Any, ...]]:
        declaration = declaration or self.embed
        keys = len(self.source.key)
        statement = sql.SQL("select {}, {} from {} order by 1").format(
            Columns(self.source.key).listed(), sql.SQL(columns), declaration.outbox
        )
        return {row[:keys]: row[keys:] for row in await (await self.conn.execute(statement)).fetchall()}

    async def absorb(self, limit: int = 2000) -> Absorbed:
        return await Absorber(self.source, self.declarations).drain(self.conn, limit)

    async def sweep(self, declaration: Declaration | None = None, size: int = 10_000) -> Piece:
        return await Sweeper(declaration or self.embed, self.targets, size).sweep(self.conn)

    async def work(self, declaration: Declaration | None = None) -> int:
        """The reference loop: each live entry's row is read, its stamp set or deleted, the entry removed."""
        declaration = declaration or self.embed
        bound = fragments(declaration)
        entries = sql.SQL("delete from {outbox} where failed_at is null returning {key}, target").format(
            **bound
        )
        rows = await (await self.conn.execute(entries)).fetchall()
        for *key, target in rows:
            given = Columns(self.source.key).one(tuple(key)) | {"target": target}
            where = sql.SQL("({key}) = ({key_values})").format(**bound)
            await self.conn.execute(
                sql.SQL("delete from {} where target = %(target)s and {}").format(declaration.stamp, where),
                given,
            )
            await self.conn.execute(
                sql.SQL(
                    "insert into {} select {}, %(target)s, content_hash from {} as r where eligible and {}"
                ).format(declaration.stamp, bound["key"], bound["source_rows"], where),
                given,
            )
        return len(rows)

    async def derived(self, declaration: Declaration | None = None) -> dict[Key, bytes]:
        """What the stamps say was made: key -> hash."""
        declaration = declaration or self.embed
        statement = sql.SQL("select {}, content_hash from {}").format(
            Columns(self.source.key).listed(), declaration.stamp
        )
        return {row[:-1]: row[-1] for row in await (await self.conn.execute(statement)).fetchall()}

    async def wanted(self, declaration: Declaration | None = None) -> dict[Key, bytes]:
        """What the source says should have been made."""
        bound = fragments(declaration or self.embed)
        statement = sql.SQL("select {key}, content_hash from {source_rows} as r where eligible").format(
            **bound
        )
        return {row[:-1]: row[-1] for row in await (await self.conn.execute(statement, {})).fetchall()}

    async def settle(self) -> None:
        """As a run does it: absorb, sweep where TRUNCATE or trouble made it due, work."""
        await self.absorb()
        for declaration in self.declarations:
            reason = await due(self.conn, declaration, sweep_every=3600)
            if reason is not None:
                await self.sweep(declaration)
            await self.work(declaration)

    async def in_step_of(self, declaration: Declaration) -> bool:
        return await self.derived(declaration) == await self.wanted(declaration)

    async def in_step(self) -> bool:
        return all([await self.derived(d) == await self.wanted(d) for d in self.declarations])


def hash_of(*columns: str) -> str:
    parts = " || ".join(f"instep.part({column}::text)" for column in columns)
    return f"instep.content_hash({parts})"


async def make(
    conn: Any,
    key: str | Sequence[str] = "bigint",
    shape: str = "plain",
    *,
    columns: str = "body text, place integer, published boolean default true, note text",
    watch: Sequence[Sequence[str]] = (("body", "published"), ("body", "published", "place")),
    eligible: str = "published",
    newest: str = "",
    name: str = "articles",
) -> Scene:
    """A user's table with rows' columns `body, place, published, note`, and two derivations that are not installed
    yet: `.embed` watches body, `.search` body and place; `note` is watched by nobody."""
    types = KEYS[key] if isinstance(key, str) else list(key)
    odd = shape == "quoted"
    schema = "other" if shape == "other_schema" else 'An "odd" 100% schema.x' if odd else "public"
    table = f'{name} "%s" with.dot' if odd else name
    names = [f'Key "{i}" 50%s' if odd else f"id_{i}" for i in range(1, len(types) + 1)]
    relation = sql.Identifier(schema, table)
    await conn.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    listed = sql.SQL(", ").join(map(sql.Identifier, names))
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in zip(names, types, strict=True)
    )
    create = sql.SQL("create table {} ({}, {}, primary key ({})) {}").format(
        relation,
        definitions,
        sql.SQL(columns),
        listed,
        sql.SQL("partition by range ({})").format(sql.Identifier(names[0]))
        if shape == "partitioned"
        else sql.SQL(""),
    )
    await conn.execute(create)
    if shape == "partitioned":
        middle = sql.Literal(value(types[0], 3))
        for part, bounds in (("low", "from (minvalue) to ({})"), ("high", "from ({}) to (maxvalue)")):
            await conn.execute(
                sql.SQL("create table {} partition of {} for values " + bounds).format(
                    sql.Identifier(schema, f"{table}_{part}"), relation, middle
                )
            )
    row = await (await conn.execute("select %s::regclass::oid", [relation.as_string(conn)])).fetchone()
    key_columns = tuple(KeyColumn(n, t) for n, t in zip(names, types, strict=True))
    source = Source(name, row[0], schema, table, key_columns)
    kinds = ("embed", "search", "third", "fourth")
    declarations = tuple(
        Declaration(
            f"{name}.{kind}",
            source,
            2**i,
            tuple(watched),
            hash_of(*(f'"{c}"' for c in watched if c != "published")),
            eligible,
            newest,
            "test",
        )
        for i, (kind, watched) in enumerate(zip(kinds, watch, strict=False))
    )
    return Scene(conn, source, declarations)


async def prepared(conn, key: str, shape: str, name: str = "articles") -> Scene:
    """Five rows, installed and in step."""
    scene = await make(conn, key, shape, name=name)
    await scene.put(1, 2, 3, 4, 5)
    await scene.install()
    await scene.settle()
    for declaration in scene.declarations:
        await scene.sweep(declaration)
        await scene.work(declaration)
    assert await scene.in_step()
    assert len(await scene.derived()) == 5
    return scene


async def swept(conn, rows: int = 0, **options) -> Scene:
    """Installed and in step, with an empty log and outbox."""
    scene = await make(conn, **options)
    await scene.put(*range(1, rows + 1))
    await scene.install()
    await scene.sweep()
    await scene.work()
    assert len(await scene.derived()) == rows
    return scene


async def bypass(scene: Scene, statement: str, *values: object) -> None:
    """A write that capture does not see: only a sweep can find it."""
    await scene.conn.execute("alter table articles disable trigger all")
    await scene.run(statement, *values)
    await scene.conn.execute("alter table articles enable trigger all")


def fields(declaration: Declaration) -> dict[str, object]:
    return {name: getattr(declaration, name) for name in declaration.__slots__}
