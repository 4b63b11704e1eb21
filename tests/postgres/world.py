"""A small world for tests of the engine: one table, the toy derivation on it, and runs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg

from instep.clock import SYSTEM, Clock
from instep.engine import declared, install
from instep.engine.absorb import Absorber
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.outbox import Outbox
from instep.engine.ports import Conn, Counters, RunReport
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.wave import Hands, Limits
from instep.testing.toy import Recorder, ToyDerivation

HASH = "instep.content_hash(instep.part(title))"


@dataclass
class World:
    """`articles(id, title, published, other)` and `articles.embed`, which is the toy derivation."""

    dsn: str
    conn: Conn
    source: Source
    derivation: ToyDerivation
    target: Target
    recorder: Recorder = field(default_factory=Recorder)
    clock: Clock = SYSTEM
    opened: list[Conn] = field(default_factory=list)

    @classmethod
    async def make(cls, dsn: str, conn: Conn, rows: int = 0) -> World:
        await conn.execute(
            "create table articles (id bigint primary key, title text, published boolean not null default true,"
            " posted timestamptz, other integer default 0)"
        )
        oid = (await (await conn.execute("select 'articles'::regclass::oid")).fetchone())[0]
        source = Source("articles", oid, "public", "articles", (KeyColumn("id", "bigint"),))
        declaration = Declaration(
            "articles.embed", source, 1, ("title", "published", "posted"), HASH, "published", "posted", "toy"
        )
        wanted = [Target(0, "articles.embed", "upper-v1", "reading")]
        made = await install.install(conn, source, [declaration], wanted)
        derivation = ToyDerivation(made.declarations[0], "title")
        await derivation.sink.prepare(conn, made.targets[0])
        world = cls(dsn, conn, source, derivation, made.targets[0])
        if rows:
            await world.insert(rows)
        return world

    @property
    def declaration(self) -> Declaration:
        return self.derivation.declaration

    async def insert(self, rows: int, first: int = 1) -> None:
        await self.conn.execute(
            "insert into articles (id, title) select g, 'title ' || g from generate_series(%s::int, %s::int) g",
            (first, first + rows - 1),
        )

    async def dedicated(self) -> Conn:
        conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        await conn.execute("set timezone = 'UTC'; set datestyle = 'ISO'; set extra_float_digits = 1")
        self.opened.append(conn)
        return conn

    async def absorb(self) -> None:
        await Absorber(self.source, await declared.read_declarations(self.conn, self.source)).drain(self.conn)

    def outbox(self, **options: float) -> Outbox:
        given = {"lease_seconds": 900.0, "max_attempts": 3} | options
        return Outbox(self.declaration, self.target, self.clock, **given)

    async def hands(self, **limits: float) -> Hands:
        reader, writer = await self.dedicated(), await self.dedicated()
        return Hands(
            self.derivation,
            self.target,
            reader,
            writer,
            self.clock,
            Limits(**limits),
            self.recorder,
            Counters(),
        )

    async def run(self, *, stop: Stop | None = None, follow: bool = False, **limits: float) -> RunReport:
        options = Options(Limits(**limits), follow=follow, poll_seconds=0.05)
        reports = await run(
            self, self.source, [self.derivation], clock=self.clock, observer=self.recorder, options=options,
            stop=stop or Stop(),
        )  # fmt: skip
        return reports[0]

    async def entries(self) -> list[dict]:
        cursor = self.conn.cursor(row_factory=psycopg.rows.dict_row)
        await cursor.execute(
            "select key_1, target, sort_key::text, generation, enqueued_at, not_before, lease_until, token, claims,"
            " attempts, failed_at, failed_hash, discarded_at, error_kind, last_error"
            " from instep.outbox_articles_embed order by key_1"
        )
        return await cursor.fetchall()

    async def entry(self, key: int) -> dict:
        return {row["key_1"]: row for row in await self.entries()}[key]

    async def outputs(self) -> dict[int, str]:
        return {
            key[0]: value for key, value in (await self.derivation.sink.all(self.conn, self.target)).items()
        }

    async def expected(self) -> dict[int, str]:
        """f(source), by plain SQL."""
        rows = await (
            await self.conn.execute("select id, upper(coalesce(title, '')) from articles where published")
        ).fetchall()
        return dict(rows)

    async def in_step(self) -> bool:
        return await self.outputs() == await self.expected()
