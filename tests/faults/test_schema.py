"""Releases that meet: a newer schema is refused and left alone, what an older one made is brought up to date, and a
change of the schema holds nobody up for long. And numbers past 2^31."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from app_scene import DIMENSIONS, added, found, opened, ran
from concurrency_scene import Crowd, crowd
from invariants import settled
from world import World

from instep.database import migrations
from instep.database.migrations import CORE, Branch, discover, migrate
from instep.engine import capture, install
from instep.testing.model_server import ModelServer

Conn = psycopg.AsyncConnection[Any]
BRIM = 2**31 - 1
HELD = 3.5  # seconds, that somebody's transaction is in the way


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Crowd]:
    async with crowd(dsn, tmp_path) as made:
        yield made


async def value(conn: Conn, statement: str, *values: Any) -> Any:
    row = await (await conn.execute(statement.encode(), values or None)).fetchone()
    return None if row is None else row[0]


async def everything(conn: Conn) -> object:
    """All that an older release could have changed."""
    tables = await conn.execute(
        "select format('%I.%I', table_schema, table_name) from information_schema.tables"
        " where table_schema in ('instep', 'public') and table_type = 'BASE TABLE' order by 1"
    )
    names = [name for (name,) in await tables.fetchall()]
    rows = {
        name: await (await conn.execute(f"select t::text from {name} t order by 1".encode())).fetchall()
        for name in names
    }
    functions = await conn.execute(
        "select proname, xmin::text from pg_proc where pronamespace = 'instep'::regnamespace order by 1"
    )
    return rows, await functions.fetchall()


async def test_an_older_release_refuses_a_newer_schema(scene: Crowd, conn: Conn) -> None:
    """As a newer release leaves it: one revision further. Exit code 2, both revisions named, nothing touched."""
    last = discover([CORE])[-1].revision
    newer = f"{int(last) + 1:04}"
    await conn.execute("insert into articles values (1, 'k1 v1')")
    await conn.execute("update instep.migration set version_num = %s where version_num = %s", (newer, last))
    before = await everything(conn)
    commands = ("migrate", "run")
    for told in await asyncio.gather(*(scene.run(command) for command in commands)):
        assert told.process.returncode == 2, told.out + told.err
        assert f"schema is {newer}, this release knows {last}" in told.err
        assert "update instep" in told.err
    assert await everything(conn) == before


async def test_what_a_newer_release_took_up_is_left_alone(scene: Crowd, conn: Conn) -> None:
    """Its templates are newer, its migrations are not: an older worker would put the older triggers back, and the next
    newer one its own, and each time a sweep would be due."""
    await conn.execute("insert into articles values (1, 'k1 v1')")
    await conn.execute("update instep.source set template = %s", (capture.TEMPLATE + 1,))
    before = await everything(conn)
    run = await scene.run("run", "articles")
    assert run.process.returncode == 1
    assert "newer release" in run.out + run.err
    assert "update instep" in run.out + run.err
    add = await scene.run(
        "tables",
        "add",
        "articles",
        "--text",
        "title",
        "--where",
        "published",
        "--engine",
        "postgres",
        "--yes",
    )
    assert add.process.returncode == 2, add.out + add.err
    assert "newer release" in add.err
    assert await everything(conn) == before


async def older(conn: Conn) -> None:
    """What the first templates made: test_what_an_older_release_made_is_brought_up_to_date goes back to it."""
    await conn.execute("alter table instep.outbox_articles_embed alter column generation type integer")
    await conn.execute("update instep.source set template = 1")


async def test_what_an_older_release_made_is_brought_up_to_date(dsn: str, conn: Conn) -> None:
    """Tables from earlier templates get what they lack, once, whoever comes first; entries stay as they are."""
    world = await World.make(dsn, conn, rows=3)
    await world.absorb()
    await world.outbox().claim(conn, 1, 7)
    await older(conn)
    before = await world.entries()
    others = [await world.dedicated() for _ in range(4)]
    verified = await asyncio.gather(*(install.verify(other, "articles") for other in others))
    assert [one.problems for one in verified] == [()] * 4
    assert sum("template 1" in line for one in verified for line in one.repaired) == 1, verified
    assert await world.entries() == before
    types = "select format_type(atttypid, null) from pg_attribute where attrelid = %s::regclass and attname = 'generation'"
    assert await value(conn, types, "instep.outbox_articles_embed") == "bigint"
    assert await value(conn, "select template from instep.source") == capture.TEMPLATE
    for other in others:
        await other.close()
    report = await world.run()
    assert (report.exit_code, report.counters.indexed) == (0, 2)  # one is leased


async def test_an_upgraded_table_is_a_new_one(dsn: str, conn: Conn) -> None:
    """Column by column and index by index, what the upgrades make of the oldest tables is what the templates make."""
    world = await World.make(dsn, conn)
    shape = (
        "select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
        " pg_get_expr(d.adbin, d.adrelid), c.reloptions from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum"
        " where c.relnamespace = 'instep'::regnamespace and c.relname like '%articles%' order by 1, a.attnum"
    )
    indexes = "select indexname, indexdef from pg_indexes where schemaname = 'instep' and tablename like '%articles%' order by 1"
    made = [await (await conn.execute(query.encode())).fetchall() for query in (shape, indexes)]
    await older(conn)
    await install.verify(conn, "articles")
    assert [await (await conn.execute(query.encode())).fetchall() for query in (shape, indexes)] == made
    assert world.declaration.name == "articles.embed"


class Stalls:
    """Somebody who goes on, and how long the longest of his statements took."""

    def __init__(self, dsn: str, statement: str) -> None:
        self.dsn, self.statement, self.longest, self.count = dsn, statement, 0.0, 0

    async def go_on(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            while True:
                began = time.monotonic()
                await conn.execute(self.statement.encode())
                self.longest, self.count = max(self.longest, time.monotonic() - began), self.count + 1
                await asyncio.sleep(0.005)


async def under_load(dsn: str, work: Any, held: str, seconds: float) -> tuple[Stalls, Stalls]:
    """`work` while one writes and one reads, and a third holds what `held` locks for `seconds`."""
    writer = Stalls(dsn, "update articles set title = title || '.' where id = 1 + (random() * 8)::int")
    reader = Stalls(
        dsn, "select (select count(*) from articles), (select count(*) from instep.change_articles)"
    )
    tasks = [asyncio.create_task(one.go_on()) for one in (writer, reader)]
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute(held.encode())
        working = asyncio.create_task(work())
        await asyncio.sleep(seconds)
        assert not working.done(), "it did not have to wait"
        await holder.rollback()
        await working
    for task in tasks:
        assert not task.done(), task.exception()
        task.cancel()
    return writer, reader


def sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Branch:
    """A catalogue with one migration."""
    folder = tmp_path / "sampled_release" / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "0001_step.sql").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Branch("sample", "sampled_release")


async def test_c5_64_a_migration_under_load_stalls_nobody_for_long(
    dsn: str, conn: Conn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """oban#1373, que#342, freehire PR#1284: a waiting ALTER makes all who come after it wait, readers too. The change log
    is what users' writes touch; somebody has read it in a transaction that stays open. The migration gives up its place
    after LOCK_SECONDS and comes again; once the transaction has ended it gets through."""
    await World.make(dsn, conn, rows=9)
    branch = sampled(tmp_path, monkeypatch, "alter table instep.change_articles add column extra integer")
    names: list[str] = []

    async def work() -> None:
        names.extend(await migrate(dsn, [branch]))

    writer, reader = await under_load(dsn, work, "select from instep.change_articles limit 1", HELD)
    assert names == ["sample_0001_step"]
    with capsys.disabled():
        told = f"writer {writer.longest:.2f} s of {writer.count} writes, reader {reader.longest:.2f} s"
        print(f" longest stall, a migration waiting {HELD} s for a table: {told}", end="")
    assert max(writer.longest, reader.longest) < migrations.LOCK_SECONDS + 1.5
    assert min(writer.count, reader.count) > 20


async def test_c5_64_an_upgrade_of_the_tables_under_load_stalls_nobody_for_long(
    dsn: str, conn: Conn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for the triggers on the user's own table, taken up anew by a newer release."""
    await World.make(dsn, conn, rows=9)
    await older(conn)
    await conn.execute("drop trigger instep_update on articles")

    async def work() -> None:
        verified = await install.verify(conn, "articles")
        assert verified.waited > 0

    held = "insert into articles values (100, 'x')"  # a writer's open transaction: the trigger waits for it
    writer, reader = await under_load(dsn, work, held, HELD)
    with capsys.disabled():
        told = f"writer {writer.longest:.2f} s of {writer.count} writes, reader {reader.longest:.2f} s"
        print(f" longest stall, triggers waiting {HELD} s for a table: {told}", end="")
    assert writer.longest < 1.0 + 1.5  # schema_change.LOCK_TIMEOUT
    assert reader.longest < 1.5
    assert min(writer.count, reader.count) > 20


@pytest.mark.parametrize("start", [BRIM - 2, 2**40])
async def test_c7_extra_numbers_past_two_to_the_31(dsn: str, conn: Conn, tmp_path: Path, start: int) -> None:
    """graphile-worker 0.17.3. Every sequence of ours and every counter of an entry stands at the brim, keys too."""
    for table, column in (("marker", "seq"), ("run", "id"), ("target", "id")):
        await conn.execute(f"alter table instep.{table} alter column {column} restart with {start}".encode())
    await conn.execute("create table articles (id bigint primary key, title text)")
    async with ModelServer("tei", dimensions=DIMENSIONS) as server, opened(dsn, server, tmp_path) as app:
        for name, engine in (("articles", "postgres"), ("notes", "tantivy")):
            if name == "notes":
                await conn.execute("create table notes (id bigint primary key, title text)")
            await added(app, name, "title", engine=engine)
            await conn.execute(
                f"alter table instep.change_{name} alter column seq restart with {start}".encode()
            )
            await conn.execute(
                f"insert into {name} select %s::bigint + g, 'k' || g || ' v1' from generate_series(1, 5) g".encode(),
                (start,),
            )
        await ran(app)
        await conn.execute("update instep.index_epoch set epoch = %s, intended = %s", (start, start))
        for name in ("articles", "notes"):
            await conn.execute(f"update {name} set title = 'k9 v9' where id = %s".encode(), (start + 2,))
            await conn.execute(f"delete from {name} where id = %s".encode(), (start + 3,))
        await ran(app)  # the index is made again: it is not what the database knows
        await conn.execute("truncate notes")
        reports = await ran(app)
        assert {report.exit_code for report in reports.values()} == {0}
        assert await found(app, "articles", "k9") == [start + 2]
        assert await found(app, "articles", "k1", mode="dense") != []
        assert await found(app, "notes", "k1") == []
        assert await app.explain("articles.embed", str(start + 2))
    rows = "select id, true, title, array[title]::text[] from articles"
    await settled(conn, ["articles.embed", "articles.search"], rows)
    assert (
        await value(conn, "select min(swept_marker) from instep.derivation where source = 'notes'") >= start
    )
    assert await value(conn, "select max(id) from instep.run") > start
    assert await value(conn, "select min(id) from instep.target") == start


@pytest.mark.parametrize("generation", [BRIM, 2**40])
async def test_an_entry_that_was_absorbed_into_two_to_the_31_times(
    dsn: str, conn: Conn, generation: int
) -> None:
    """Nobody counts that far; but one that does must not stop every absorb of its source."""
    world = await World.make(dsn, conn, rows=2)
    await world.absorb()
    await conn.execute(
        "update instep.outbox_articles_embed set generation = %s where key_1 = 1", (generation,)
    )
    entries = await world.outbox().claim(conn, 10, 7)
    await conn.execute("update articles set title = 'changed'")
    await world.absorb()
    assert (await world.entry(1))["generation"] == generation + 1
    from instep.engine.outbox import Failure

    failures = [Failure(entry, "boom", "it broke", True, b"old") for entry in entries]
    recorded = await world.outbox().fail(conn, 7, failures)
    assert recorded.given_back == 2
    assert (await world.run()).exit_code == 0
    assert await world.in_step()
