"""What stands on the user's table, what was done to it since, and that it goes without a trace."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from finding_scene import Scene, make
from psycopg import errors as pg

from instep.engine.absorb import Absorber
from instep.engine.capture import TRIGGERS, family
from instep.engine.declaration import Declaration, Source, Target
from instep.engine.declared import read_declaration, read_source, read_targets
from instep.engine.install import Verified, install, remove, verify
from instep.engine.schema_change import schema_change
from instep.engine.sweep import due
from instep.errors import Outage, Refused


async def _swept(scene: Scene) -> None:
    for declaration in scene.declarations:
        await scene.sweep(declaration)
        await scene.work(declaration)
    assert await due(scene.conn, scene.embed, sweep_every=60) is None


async def _installed(conn, **options) -> Scene:
    scene = await make(conn, **options)
    await scene.put(1, 2, 4, 5)
    await scene.install()
    await _swept(scene)
    return scene


async def _catalogue(conn) -> set[tuple[str, ...]]:
    """All tables, indexes, sequences, functions, triggers and rows of the database that could be ours."""
    rows = await (
        await conn.execute(
            "select 'class', oid::regclass::text from pg_class where relnamespace >= 2200 or relname ~ 'instep' "
            "union all select 'function', oid::regprocedure::text from pg_proc where pronamespace >= 2200 "
            "union all select 'trigger', tgname || tgrelid::regclass from pg_trigger "
            "union all select 'type', typname from pg_type where typnamespace >= 2200 "
            "union all select 'row', t::text from instep.target t union all select 'row', d::text from instep.derivation d "
            "union all select 'row', s::text from instep.source s union all select 'row', m::text from instep.marker m"
        )
    ).fetchall()
    return {row for row in rows if "pg_toast" not in row[1]}


@pytest.mark.parametrize("shape", ["plain", "quoted", "partitioned"])
async def test_remove_leaves_no_trace(conn, shape):
    scene = await make(conn, shape=shape)
    before = await _catalogue(conn)
    await scene.put(1, 5)
    await scene.install()
    assert await _catalogue(conn) != before
    await scene.run("truncate {table}")
    await remove(conn, "articles")
    assert await _catalogue(conn) == before
    await scene.put(1)  # and the table is as usable as ever


async def test_remove_works_while_workers_run(conn, dsn):
    """Absorbing goes on during it: it ends with what it saw, and nothing of it is left."""
    scene = await _installed(conn)
    await scene.run("insert into {table} (id_1, body) select i, 'x' from generate_series(10, 3000) as i")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as worker:

        async def absorb() -> None:
            absorber = Absorber(scene.source, scene.declarations)
            while True:
                await absorber.absorb(worker, 20)

        task = asyncio.create_task(absorb())
        await asyncio.sleep(0.1)
        await remove(conn, "articles")
        with pytest.raises((pg.UndefinedTable, pg.DeadlockDetected)):
            await task
    assert await scene.run("select relname from pg_class where relname ~ '^(change|outbox|stamp)_'") == []


async def test_installing_again_changes_nothing(conn):
    scene = await _installed(conn)
    before = await _catalogue(conn)
    first = scene.targets
    installed = await scene.install()
    assert await _catalogue(conn) == before
    assert installed.targets == first
    assert await due(conn, scene.embed, sweep_every=60) is None


async def test_two_processes_may_install_at_the_same_moment(conn, dsn):
    scene = await make(conn, shape="partitioned")
    targets = [Target(0, d.name, "t1", "reading") for d in scene.declarations]
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
    ):
        first, second = await asyncio.gather(
            install(one, scene.source, scene.declarations, targets),
            install(other, scene.source, scene.declarations, targets),
        )
    assert first.targets == second.targets
    assert await verify(conn, "articles") == Verified()
    await scene.put(1)
    assert len(await scene.log()) == 1


async def test_installing_waits_for_locks_in_short_tries(conn, dsn):
    """A long transaction holds the table: the user's statements pass between the tries, the wait is told, and when
    all tries are spent nothing is left of them."""
    scene = await make(conn)
    await scene.put(1)
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute("update articles set note = 'x'")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as mine:
            task = asyncio.create_task(
                install(mine, scene.source, scene.declarations, [Target(0, "articles.embed", "t1", "")])
            )
            await asyncio.sleep(0.5)
            await conn.execute("set lock_timeout = '20s'")
            await scene.put(2)  # queues behind a try, and passes when it gives up
            assert not task.done()
            await holder.commit()
            assert (await task).waited > 0.5
    await scene.put(3)
    assert [key for key, _ in await scene.log()] == [(3,)]


async def test_tries_come_to_an_end(conn, dsn):
    await conn.execute("create table a (id int primary key)")
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute("lock table a")

        async def work() -> None:
            await conn.execute("create table half_done (id int)")
            await conn.execute("drop table a")

        with pytest.raises(Outage, match="Could not do it: other sessions held its locks"):
            await schema_change(conn, work, "do it", lock_timeout="lock_timeout = '1ms'", tries=3)
    row = await (await conn.execute("select to_regclass('half_done')")).fetchone()
    assert row == (None,)


async def test_the_first_target_is_read_and_the_next_is_filled(conn):
    scene = await _installed(conn)
    await install(
        conn, scene.source, scene.declarations, [Target(0, "articles.embed", "t2", "", {"model": "m"})]
    )
    targets = await read_targets(conn, "articles.embed")
    assert [(t.name, t.state, t.spec) for t in targets] == [
        ("t1", "reading", {}),
        ("t2", "filling", {"model": "m"}),
    ]
    assert "target t2 added" in (await due(conn, scene.embed, sweep_every=60) or "")
    assert await due(conn, scene.declarations[1], sweep_every=60) is None


async def test_a_changed_declaration_makes_a_sweep_due(conn):
    scene = await _installed(conn)
    changed = Declaration(
        "articles.embed", scene.source, 1, ("note",), "sha256(note::bytea)", catalogue="test"
    )
    await install(conn, scene.source, [changed], [])
    assert "declaration changed" in (await due(conn, scene.embed, sweep_every=60) or "")
    assert await read_declaration(conn, "articles.embed") == changed
    await scene.run("update {table} set note = 'now watched' where id_1 = 1")
    assert await scene.log() == [((1,), 1)]


@pytest.mark.parametrize("shape", ["plain", "partitioned"])
async def test_a_dropped_or_switched_trigger_is_repaired(conn, shape):
    """Each of them, and a sweep is due then; a run's start that finds all well takes no lock and repairs nothing."""
    scene = await _installed(conn, shape=shape)
    assert await verify(conn, "articles") == Verified()
    for trigger in TRIGGERS:
        for damage in (
            f"drop trigger {trigger} on articles",
            f"alter table articles disable trigger {trigger}",
        ):
            await conn.execute(damage)
            verified = await verify(conn, "articles")
            assert verified.repaired
            assert not verified.problems
            assert trigger in (await due(conn, scene.embed, sweep_every=60) or "")
            await _swept(scene)
            assert await verify(conn, "articles") == Verified()


async def test_enable_trigger_all_is_repaired_on_partitions_too(conn):
    """`pg_restore --disable-triggers` and ENABLE TRIGGER ALL turn ALWAYS and REPLICA into plain."""
    await _installed(conn, shape="partitioned")
    await conn.execute("alter table articles enable trigger all; alter table articles_low enable trigger all")
    assert (await verify(conn, "articles")).repaired
    source = await read_source(conn, "articles")
    for member in await family(conn, source.oid):
        assert {name: state for name, (state, _) in member.triggers.items()} == TRIGGERS
    assert await verify(conn, "articles") == Verified()


async def test_partitions_that_come_and_go(conn):
    """ATTACH fires nothing: its rows are found by the sweep that the run's start makes due; likewise DETACH, DROP."""
    scene = await _installed(conn, shape="partitioned")
    await conn.execute("drop table articles_high; create table more (like articles including all)")
    await conn.execute("insert into more (id_1, body) values (7, 'attached')")
    verified = await verify(conn, "articles")
    assert verified.repaired == ("1 partition was detached or dropped",)
    await scene.settle()
    assert set(await scene.derived()) == {(1,), (2,)}
    await conn.execute("alter table articles attach partition more for values from (3) to (maxvalue)")
    verified = await verify(conn, "articles")
    assert "public.more was attached" in verified.repaired
    await scene.settle()
    assert await scene.in_step()
    await conn.execute("insert into more (id_1, body) values (8, 'its own triggers')")
    assert await scene.log() == [((8,), 3)]
    await scene.settle()
    await conn.execute("alter table articles detach partition more")
    assert (await verify(conn, "articles")).repaired
    await scene.settle()
    assert set(await scene.derived()) == {(1,), (2,)}
    assert await verify(conn, "articles") == Verified()


async def test_a_renamed_or_moved_table_goes_on(conn):
    scene = await _installed(conn)
    await conn.execute(
        "create schema elsewhere; alter table articles rename to papers; alter table papers set schema elsewhere"
    )
    assert (await verify(conn, "articles")).repaired == ("public.articles is now called elsewhere.papers",)
    source = await read_source(conn, "articles")
    assert (source.schema, source.table) == ("elsewhere", "papers")
    await conn.execute("update elsewhere.papers set body = 'x' where id_1 = 1")
    assert (
        await Absorber(source, [Declaration(**{**_fields(scene.embed), "source": source})]).absorb(conn)
    ).taken == 1
    assert await verify(conn, "articles") == Verified()


def _fields(declaration: Declaration) -> dict[str, object]:
    return {name: getattr(declaration, name) for name in declaration.__slots__}


async def test_a_restored_database_is_taken_up_again(conn):
    """Its tables have other OIDs than the rows say: the table is the one that bears our triggers."""
    scene = await _installed(conn)
    await conn.execute("update instep.source set relation = 'instep.target'::regclass")
    verified = await verify(conn, "articles")
    assert "taken up again" in verified.repaired[0]
    assert (await read_source(conn, "articles")).oid == scene.source.oid
    assert "restored" in (await due(conn, scene.embed, sweep_every=60) or "")
    assert await verify(conn, "articles") == Verified()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("alter table articles rename body to words", "public.articles.body was renamed to words"),
        ("alter table articles drop body", "public.articles.body was dropped"),
        (
            "alter table articles alter place type bigint",
            "public.articles.place was integer and is now bigint",
        ),
        ("alter table articles rename id_1 to id", "public.articles.id_1 was renamed to id"),
        ("drop table articles", "the table public.articles does not exist any more"),
        (
            "drop table articles; create table articles (id int)",
            "the table public.articles does not exist any more",
        ),
    ],
)
async def test_what_cannot_be_mended_is_said(conn, damage, what):
    await _installed(conn)
    await conn.execute(damage)
    verified = await verify(conn, "articles")
    assert [problem.what for problem in verified.problems] == [what]
    assert "instep tables" in verified.problems[0].mend or "Add the column" in verified.problems[0].mend
    await remove(conn, "articles")  # always possible
    assert await (await conn.execute("select * from instep.source")).fetchall() == []


async def test_columns_that_nobody_watches_may_change(conn):
    """And a varchar may grow, a key's too: our tables have no length."""
    scene = await make(conn, columns="body varchar(9), place int, published bool default true, note text")
    await scene.install()
    await _swept(scene)
    await conn.execute(
        "alter table articles drop note; alter table articles add more int; alter table articles alter body type varchar(99)"
    )
    assert await verify(conn, "articles") == Verified()


async def test_trouble_in_capture_is_told_until_a_sweep_has_passed_it(conn):
    scene = await _installed(conn)
    await conn.execute("alter table articles rename body to words")
    await conn.execute("update articles set words = 'x'")
    await conn.execute("alter table articles rename words to body")
    assert (await verify(conn, "articles")).repaired == (
        "capture had trouble with 1 statements on public.articles: a sweep finds what they changed",
    )
    await scene.settle()
    assert await scene.in_step()
    assert await verify(conn, "articles") == Verified()


async def test_one_table_is_one_source(conn):
    scene = await _installed(conn)
    again = Source("papers", scene.source.oid, "public", "articles", scene.source.key)
    with pytest.raises(Refused, match="already the source 'articles'"):
        await install(conn, again, [Declaration("papers.embed", again, 1, ("body",), "''::bytea")], [])


@pytest.mark.parametrize("name", ["x" * 41, "9lives", "Upper", "two words", ""])
async def test_names_that_cannot_be_used_are_refused(conn, name):
    scene = await make(conn)
    source = Source(name, scene.source.oid, "public", "articles", scene.source.key)
    with pytest.raises(Refused, match="cannot be used"):
        await install(conn, source, [Declaration(f"{name}.embed", source, 1, ("body",), "''::bytea")], [])


async def test_the_longest_names_work(conn):
    scene = await make(conn, name="a" * 33)
    await scene.put(1)
    await scene.install()
    await scene.put(2)
    assert (await scene.absorb()).taken == 1


async def test_no_right_to_create_triggers_is_said(conn):
    role = f"nobody_{conn.info.dbname}"
    scene = await make(conn)
    await conn.execute(
        f"create role {role}; grant all on schema instep to {role}; grant all on all tables in schema instep to {role}"
    )
    await conn.execute(f"set role {role}")
    with pytest.raises(Refused, match=r"No right to install triggers on public\.articles"):
        await scene.install()
    await conn.execute("reset role")
    assert await scene.run("select * from instep.source") == []
    await conn.execute(f"drop owned by {role}; drop role {role}")


async def test_unknown_names_are_refused_with_near_ones(conn):
    await _installed(conn)
    with pytest.raises(Refused) as refused:
        await read_source(conn, "artikles")
    assert refused.value.hint == "Did you mean articles?"
    with pytest.raises(Refused) as refused:
        await read_declaration(conn, "articles.embde")
    assert "articles.embed" in (refused.value.hint or "")


async def test_row_level_security_that_came_later_clears_nothing(conn):
    """A worker under a role that it hides rows from would see nothing, and clear everything."""
    scene = await make(conn)
    await scene.install()
    role = f"reader_{conn.info.dbname}"
    await conn.execute(
        f"create role {role}; grant usage on schema instep to {role}; grant select on all tables in schema instep, public to"
        f" {role}; alter table articles enable row level security"
    )
    assert (await verify(conn, "articles")).problems == ()  # its owner bypasses it
    await conn.execute(f"set role {role}")
    problems = (await verify(conn, "articles")).problems
    assert "hides rows from this role" in problems[0].what
    assert "bypassrls" in problems[0].mend
    await conn.execute(f"reset role; drop owned by {role}; drop role {role}")
