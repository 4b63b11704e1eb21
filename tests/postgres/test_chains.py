"""Chains: the chunk table of one derivation is the source of another, several rows to an entity."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from embedding_world import DIMENSIONS, EmbeddingWorld
from explained import most_read, plan_of
from finding_scene import Scene, hash_of

from instep.clock import SYSTEM
from instep.database.transactions import INDEX_ONLY, WORKER
from instep.engine.absorb import Absorber
from instep.engine.declaration import Declaration, KeyColumn, Source, Target
from instep.engine.declared import read_declarations, read_source
from instep.engine.explain import explain
from instep.engine.install import install, remove, verify
from instep.engine.outbox import Failure, Outbox
from instep.engine.ports import RunReport
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.sweep import Sweeper
from instep.engine.wave import Limits
from instep.errors import Refused
from instep.testing.model_server import ModelServer
from instep.testing.toy import ToyDerivation

HOURLY = 3600.0  # seconds between sweeps: what a run finds before, it finds by capture


def article(number: int, *, first: str = "") -> str:
    """Three paragraphs, each a chunk of its own."""
    return "\n\n".join(
        f"{first if n == 1 and first else f'{number}.{n}'} " + "word " * 150 for n in range(1, 4)
    )


@dataclass
class Chain:
    """`articles.embed` and, on its chunk table, `gathered.upper`: an article's chunks in upper case, joined."""

    world: EmbeddingWorld
    derivation: ToyDerivation
    target: Target

    @classmethod
    async def make(cls, world: EmbeddingWorld) -> Chain:
        await world.derivation.sink.prepare(world.conn, world.target)
        table = f"chunk_{world.tables.suffix}"
        [(oid,)] = await world.rows(f"select 'instep.{table}'::regclass::oid")
        source = Source("gathered", oid, "instep", table, (KeyColumn("key_1", "bigint"),), ("text_hash",))
        declaration = Declaration("gathered.upper", source, 1, ("text",), hash_of("text"), catalogue="toy")
        made = await install(
            world.conn, source, [declaration], [Target(0, declaration.name, "upper-v1", "reading")]
        )
        derivation = ToyDerivation(made.declarations[0], "text")
        await derivation.sink.prepare(world.conn, made.targets[0])
        return cls(world, derivation, made.targets[0])

    @property
    def source(self) -> Source:
        return self.derivation.declaration.source

    async def run(self) -> RunReport:
        self.derivation.calls.clear()
        [report] = await run(
            self.world, self.source, [self.derivation], clock=SYSTEM, observer=self.world.recorder,
            options=Options(Limits(), sweep_every=HOURLY), stop=Stop(),
        )  # fmt: skip
        assert report.exit_code == 0, report
        return report

    async def do(self, statement: str) -> None:
        await self.world.conn.execute(statement.replace("CHUNK", self.world.tables.chunk.as_string(None)))

    async def in_step(self) -> bool:
        """By plain SQL, of the rows that stand."""
        chunk = self.world.tables.chunk.as_string(None)
        rows = await self.world.rows(
            f"select key_1, upper(string_agg(text, ' ' order by text)) from {chunk} group by key_1"
        )
        made = await self.derivation.sink.all(self.world.conn, self.target)
        return {key: text for (key,), text in made.items()} == dict(rows)

    async def log(self) -> list[int]:
        return [
            key for (key,) in await self.world.rows("select key_1 from instep.change_gathered order by 1")
        ]


@pytest.fixture
async def chain(dsn, conn):
    async with ModelServer("tei", dimensions=DIMENSIONS) as server:
        server.faults.max_batch = 512
        world = await EmbeddingWorld.make(dsn, conn, server)
        for number in range(1, 6):
            await conn.execute("insert into articles (id, title) values (%s, %s)", (number, article(number)))
        yield await Chain.make(world)
        await world.embedder.close()


async def test_a_run_of_each_brings_both_in_step(chain):
    """What is written by the first is found by the second, changed articles alone: one edit, one delete."""
    assert (await chain.world.run()).counters.indexed == 5
    assert (await chain.run()).counters.indexed == 5
    assert await chain.in_step()
    assert [len(chunks) for chunks in (await chain.world.chunks()).values()] == [3] * 5

    edited = article(2, first="edited")
    await chain.world.conn.execute("update articles set title = %s where id = 2", (edited,))
    await chain.world.conn.execute("delete from articles where id = 3")
    await chain.world.run()
    report = await chain.run()
    assert (report.counters.indexed, report.counters.removed) == (1, 1)
    assert [len(call) for call in chain.derivation.calls] == [1]
    assert "edited" in chain.derivation.calls[0][0]
    assert await chain.in_step()
    assert (await chain.run()).counters.enqueued == 0


WRITES = {
    "insert": ("insert into CHUNK select 1, '\\x01', 'by hand', vector from CHUNK limit 1", 1, 0),
    "orphan": ("insert into CHUNK select 99, '\\x01', 'of nobody', vector from CHUNK limit 1", 1, 0),
    "update": ("update CHUNK set text = text || '!' where key_1 in (1, 2)", 2, 0),
    "one row": ("update CHUNK set text = 'x' where ctid = (select ctid from CHUNK where key_1 = 1 limit 1)", 1, 0),
    "swapped hashes": ("update CHUNK set text_hash = '\\x' || sha256(text_hash) where key_1 = 1", 0, 0),
    "unwatched": ("update CHUNK set vector = vector", 0, 0),
    "moved": ("update CHUNK set key_1 = 2 where key_1 = 1", 1, 1),
    "one moved": (
        "update CHUNK set key_1 = 2 where ctid = (select ctid from CHUNK where key_1 = 1 limit 1)", 2, 0,
    ),
    "upsert": (
        "insert into CHUNK select key_1, text_hash, 'twice', vector from CHUNK where key_1 = 4"
        " on conflict (key_1, text_hash) do update set text = excluded.text", 1, 0,
    ),
    "delete one": ("delete from CHUNK where ctid = (select ctid from CHUNK where key_1 = 1 limit 1)", 1, 0),
    "delete all": ("delete from CHUNK where key_1 = 1", 0, 1),
    "truncate": ("truncate CHUNK", 0, 5),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
async def test_chunks_written_by_plain_sql_reach_what_is_chained_on_them(chain, write):
    """The table has more than one writer: none has to call anything."""
    await chain.world.run()
    await chain.run()
    statement, indexed, removed = WRITES[write]
    await chain.do(statement)
    report = await chain.run()
    assert (sum(map(len, chain.derivation.calls)), report.counters.removed) == (indexed, removed)
    assert await chain.in_step()


async def test_a_replicas_rows_are_captured(chain):
    """Row by row, as logical replication applies them."""
    await chain.world.run()
    await chain.run()
    await chain.do("set session_replication_role = replica")
    await chain.do("update CHUNK set text = text || '!' where key_1 = 1")
    await chain.do("update CHUNK set key_1 = 7 where key_1 = 2")
    await chain.do("delete from CHUNK where key_1 = 3")
    await chain.do("set session_replication_role = origin")
    await chain.run()
    assert await chain.in_step()


async def test_an_entity_is_logged_once_for_a_statement(chain):
    """Not once for each of its rows; and rows of one entity that differ are not mistaken for a change."""
    await chain.world.run()
    await chain.run()
    await chain.do(
        "insert into CHUNK select e, sha256(n::text::bytea), n::text, (select vector from CHUNK limit 1)"
        " from generate_series(1, 2) e, generate_series(1, 3000) n"
    )
    assert await chain.log() == [1, 2]
    await chain.do("update CHUNK set vector = vector")  # nothing that is watched
    assert await chain.log() == [1, 2]
    await chain.do("update CHUNK set text = text || 'x' where key_1 = 1")
    await chain.do("delete from CHUNK where key_1 = 2")
    assert await chain.log() == [1, 1, 2, 2]


async def test_an_uncaptured_write_is_found_by_the_sweep(chain):
    """An edit, a lost row, a lost entity and a new one, piece by piece with a bound inside an entity."""
    await chain.world.run()
    await chain.run()
    declaration = chain.derivation.declaration
    for disable in ("disable", "enable"):
        if disable == "enable":
            await chain.do(
                "update CHUNK set text = 'x' where ctid = (select ctid from CHUNK where key_1 = 1 limit 1)"
            )
            await chain.do("delete from CHUNK where ctid = (select ctid from CHUNK where key_1 = 2 limit 1)")
            await chain.do("delete from CHUNK where key_1 = 3")
            await chain.do("insert into CHUNK select 99, text_hash, text, vector from CHUNK where key_1 = 4")
        await chain.do(f"alter table CHUNK {disable} trigger all")
    assert await chain.log() == []
    swept = await Sweeper(declaration, [chain.target], 1).sweep(chain.world.conn)
    assert (swept.enqueued, swept.keys_seen) == (4, 5)
    await chain.run()
    assert await chain.in_step()


async def test_explain_sees_the_entity_not_its_rows(chain):
    await chain.world.run()
    await chain.run()
    conn, declaration = chain.world.conn, chain.derivation.declaration
    seen = await explain(conn, declaration, [chain.target], (1,))
    assert (seen.found, seen.eligible, seen.in_sync) == (True, True, True)
    await chain.do("delete from CHUNK where key_1 = 1")
    seen = await explain(conn, declaration, [chain.target], (1,))
    assert (seen.found, seen.logged) == (False, True)


async def test_when_the_owners_table_goes_the_chain_says_so_and_can_be_removed(chain):
    """The chunk table is dropped with its target: what is chained on it says so, and `remove` leaves no trace of it."""
    world = chain.world
    await world.run()
    await chain.run()
    assert (await verify(world.conn, "gathered")).problems == ()
    await remove(world.conn, "articles")
    await world.derivation.sink.drop(world.conn, world.target)
    [problem] = (await verify(world.conn, "gathered")).problems
    assert "does not exist any more" in problem.what
    assert "remove gathered" in problem.mend
    await remove(world.conn, "gathered")
    left = await world.rows(
        "select relname from pg_class where relnamespace = 'instep'::regnamespace and relname ~ 'gathered'"
        " union all select proname from pg_proc where pronamespace = 'instep'::regnamespace and proname ~ 'gathered'"
        " union all select name from instep.source union all select name from instep.derivation"
    )
    assert left == []


async def test_removing_the_chain_leaves_its_source_as_it_was(chain):
    await chain.world.run()
    await remove(chain.world.conn, "gathered")
    table = chain.world.tables.chunk.as_string(None)
    assert await chain.world.rows(f"select tgname from pg_trigger where tgrelid = '{table}'::regclass") == []
    await chain.do("truncate CHUNK")
    assert await chain.world.rows("select * from instep.marker") == []


# Grouped sources in every shape, without a model


async def grouped(
    conn, *, partitioned: bool = False, eligible: str = "published", newest: str = "at"
) -> Scene:
    """`parts("Ke%y", id_2, n, body, …)`: rows of one ("Ke%y", id_2) make one entity."""
    await conn.execute(
        'create table parts ("Ke%y" text, id_2 integer, n integer, body text, published boolean default true,'
        ' at timestamptz, other integer default 0, primary key ("Ke%y", id_2, n))'
        + (" partition by list (id_2)" if partitioned else "")
    )
    if partitioned:
        await conn.execute("create table parts_0 partition of parts for values in (0)")
        await conn.execute("create table parts_more partition of parts default")
    [(oid,)] = await (await conn.execute("select 'parts'::regclass::oid")).fetchall()
    key = (KeyColumn("Ke%y", "text"), KeyColumn("id_2", "integer"))
    source = Source("parts", oid, "public", "parts", key, ("n",))
    declarations = tuple(
        Declaration(f"parts.{kind}", source, bit, watch, hash_of(*hashed), eligible, newest, "test")
        for kind, bit, watch, hashed in (
            ("embed", 1, ("body", "published", "at"), ("body",)),
            ("search", 2, ("body", "published", "at", "other"), ("body", "other")),
        )
    )
    return Scene(conn, source, declarations)


@pytest.mark.parametrize("partitioned", [False, True])
async def test_random_writes_are_all_found(conn, partitioned):
    """Inserts, edits, moves between entities, changes of condition and deletes, many to a statement: capture alone."""
    scene = await grouped(conn, partitioned=partitioned)
    await conn.execute("create sequence fresh")
    await scene.install()
    await scene.settle()
    random_ = random.Random(7)
    for step in range(25):
        place = random_.randrange(6)
        where = random_.choice(["n % 3 = 1", f"\"Ke%y\" = 'k{place}'", "id_2 = 0", f"n = {place}"])
        await conn.execute(
            random_.choice(
                [
                    f"insert into parts select 'k' || e, e % 2, nextval('fresh'), 'body ' || n"
                    f" from generate_series({place}, {place + 1}) e, generate_series(1, 3) n",
                    f"update parts set body = body || {step} where {where}",
                    f"update parts set published = not published where {where}",
                    f"update parts set other = other + 1 where {where}",
                    f"update parts set \"Ke%y\" = 'k{place}', n = nextval('fresh') where {where}",
                    f"update parts set id_2 = 1 - id_2, n = nextval('fresh') where {where}",
                    f"delete from parts where {where}",
                ]
            )
        )  # fmt: skip
        await scene.settle()
        assert await scene.in_step(), step
    eligible = await (
        await conn.execute('select distinct "Ke%y", id_2 from parts where published')
    ).fetchall()
    assert len(eligible) > 2
    assert set(await scene.derived()) == set(eligible)


async def test_eligible_rows_make_the_entity(conn):
    """An entity is eligible while one row is; rows that are not eligible are no part of its hash and sort key."""
    scene = await grouped(conn)
    await scene.install()
    await conn.execute(
        "insert into parts values ('k', 0, 1, 'a', true, '2020-01-01'), ('k', 0, 2, 'b', false, '2030-01-01'),"
        " ('k', 1, 1, 'c', null, '2030-01-01')"
    )
    await scene.absorb()
    assert await scene.entries("sort_key = '2020-01-01', sort_key > now() - interval '1 min'") == {
        ("k", 0): (True, False),
        ("k", 1): (False, True),
    }
    await scene.settle()
    before = await scene.derived()
    assert set(before) == {("k", 0)}
    await conn.execute("update parts set body = 'other' where n = 2")
    assert await scene.wanted() == before
    await conn.execute("update parts set published = true where n = 2")
    await scene.settle()
    assert (await scene.derived())["k", 0] != before["k", 0]
    await conn.execute("update parts set n = n + 10")  # what tells rows apart is no content
    await conn.execute(
        "update parts set published = false where n = 12; delete from parts where n = 11 and id_2 = 1"
    )
    await scene.settle()
    assert await scene.derived() == before
    await conn.execute("update parts set published = false")
    await scene.settle()
    assert await scene.derived() == {}


async def test_equal_rows_and_null_hashes_count(conn):
    """Two equal rows are not one; a row whose hash is NULL is a row."""
    scene = await grouped(conn)
    scene.declarations = tuple(
        replace(d, hash="case when body <> '' then sha256(body::bytea) end") for d in scene.declarations
    )
    await scene.install()
    seen = []
    for row in ("1, 'a'", "2, 'a'", "3, ''", "4, ''"):
        await conn.execute(f"insert into parts values ('k', 0, {row})")
        await scene.settle()
        assert await scene.in_step()
        seen.append((await scene.derived())["k", 0])
    assert len(set(seen)) == 4


async def test_an_entity_that_cannot_be_read_is_buried_once(conn):
    """Several of its rows fail, its neighbours do not: one dead letter, and the sweep comes to an end."""
    scene = await grouped(conn, eligible="10 / other > 0", newest="")
    await conn.execute(
        "insert into parts (\"Ke%y\", id_2, n, body, other) select 'k' || e, 0, n, 'x', case when e = 3 then 0 else 1 end"
        " from generate_series(1, 5) e, generate_series(1, 3) n"
    )
    await scene.install()
    piece = await scene.sweep()
    assert (piece.enqueued, piece.keys_seen, piece.buried) == (4, 5, 1)
    dead = await scene.entries("error_kind, failed_at is not null")
    assert dead["k3", 0] == ("unreadable row", True)
    assert (await scene.absorb()).taken == 0


async def test_a_failure_is_judged_by_the_entitys_hash(conn):
    """Counted where generation moved on but the rows' content is what was loaded; given back where it is not."""
    scene = await grouped(conn)
    await scene.install()
    await conn.execute(
        "insert into parts select 'k', e, n, 'x' from generate_series(1, 2) e, generate_series(1, 3) n"
    )
    await scene.absorb()
    outbox = Outbox(scene.embed, scene.targets[0], SYSTEM, lease_seconds=900, max_attempts=3)
    entries = await outbox.claim(conn, 10, 7)
    loaded = await scene.wanted()
    await conn.execute("update parts set body = 'y' where id_2 = 1 and n = 2")
    await conn.execute(
        "update parts set at = now() where id_2 = 2 and n = 2"
    )  # watched, not part of the hash
    await scene.absorb()
    recorded = await outbox.fail(
        conn, 7, [Failure(entry, "error", "x", False, loaded[entry.key]) for entry in entries]
    )
    assert (recorded.failed, recorded.given_back) == (1, 1)
    assert await scene.entries("attempts") == {("k", 1): (0,), ("k", 2): (1,)}


@pytest.mark.parametrize("form", ["generic", "custom"])
@pytest.mark.parametrize("statistics", ["fresh", "missing"])
async def test_no_statement_reads_the_relation_as_a_whole(conn, form, statistics):
    """Absorb, fail, explain and a piece of a sweep look up the rows of their entities: 20,000 rows of 5,000 entities."""
    scene = await grouped(conn)
    await scene.install()
    await conn.execute("alter table parts set (autovacuum_enabled = off)")
    await conn.execute(
        "insert into parts select 'k' || e, e, n, 'x' from generate_series(1, 5000) e, generate_series(1, 4) n"
    )
    if statistics == "fresh":
        await conn.execute("analyze parts")
    await conn.execute("truncate instep.change_parts")
    await conn.execute("update parts set body = 'y' where id_2 <= 100")
    target = scene.targets[0]

    absorber = Absorber(scene.source, scene.declarations)
    absorbing = {"source": "parts", "cursor": 0, "limit": 2000}
    text = await plan_of(conn, absorber._statement, absorbing, form, WORKER, *INDEX_ONLY)
    assert "parts_pkey" in text
    assert "Seq Scan on parts" not in text
    assert most_read(text) <= 400, text

    await scene.absorb()
    outbox = Outbox(scene.embed, target, SYSTEM, lease_seconds=900, max_attempts=3)
    keys = [entry.key for entry in await outbox.claim(conn, 100, 7)]
    failing = {
        "target": target.name, "token": 7, "max_attempts": 3, "backoff": 4.0, "generation": [2] * len(keys),
        "kind": ["x"] * len(keys), "message": ["x"] * len(keys), "deterministic": [False] * len(keys),
        "hash": [b"x"] * len(keys), "jitter": [1.0] * len(keys), **outbox.columns.arrays(keys),
    }  # fmt: skip
    text = await plan_of(conn, outbox._sql["fail"], failing, form)
    assert len(keys) == 100
    assert "Seq Scan on parts" not in text
    assert most_read(text) <= 400, text

    sweeper = Sweeper(scene.embed, [target], 500)
    lower, upper = ("k2", 0), ("k25", 0)
    values = {"derivation": "parts.embed", **sweeper._range(lower, upper)}
    text = await plan_of(conn, sweeper._statement("piece", lower, upper), values, form)
    rows = await (await conn.execute("select count(*) from parts where (\"Ke%y\", id_2) > ('k2', 0) and (\"Ke%y\", id_2) <= ('k25', 0)")).fetchone()  # fmt: skip
    assert 500 < rows[0] < 5000
    assert "parts_pkey" in text
    assert most_read(text) <= rows[0], text


async def test_a_source_without_such_a_key_is_refused(conn):
    """A null key would fail the writer's statement, and an unindexed one would be looked up by a scan."""
    scene = await grouped(conn)
    for parts in (("body",), ("at", "n"), ("nothing",)):
        wrong = replace(scene.source, parts=parts)
        with pytest.raises(Refused, match="has no"):
            await install(conn, wrong, [replace(d, source=wrong) for d in scene.declarations], [])
    turned = replace(scene.source, key=scene.source.key[:1], parts=("n", "id_2"))
    with pytest.raises(Refused, match=r"no unique key over \(Ke%y, n, id_2\)"):
        await install(conn, turned, [replace(d, source=turned) for d in scene.declarations], [])


async def test_what_tells_rows_apart_is_remembered(conn):
    """A worker knows it from the database alone, and says so when the column was renamed."""
    scene = await grouped(conn)
    await scene.install()
    assert await read_source(conn, "parts") == scene.source
    assert await read_declarations(conn, scene.source) == list(scene.declarations)
    assert (await verify(conn, "parts")).problems == ()
    await conn.execute("alter table parts rename n to m")
    assert "n was renamed to m" in (await verify(conn, "parts")).problems[0].what
