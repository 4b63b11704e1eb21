"""What triggers put into the change log: every way of writing a row, and that the user never notices.

The table of cases (types of key, shapes, operations) is in test_capture_cases.py.
"""

from __future__ import annotations

import psycopg
import pytest
from finding_scene import Scene, make, prepared
from psycopg import errors as pg

from instep.engine.absorb import Absorbed, Absorber
from instep.errors import Refused


async def test_c1_3_unwatched_updates_make_no_work(conn):
    """pgai#878: 1,000 updates of a column that nobody watches: log and outbox grow by 0."""
    scene = await prepared(conn, "bigint", "plain")
    for i in range(995):
        await scene.run("update {table} set note = %s where {is}", f"note {i}", i % 5 + 1)
    for _ in range(5):
        await scene.run("update {table} set note = 'the same for all', body = body")
    assert await scene.log() == []
    assert (await scene.absorb()).taken == 0
    assert await scene.entries("target") == {}


async def test_the_mask_names_the_derivations_that_watch_the_change(conn):
    """`place` is watched by the second derivation alone: the first gets no entry, so no model call."""
    scene = await prepared(conn, "bigint", "plain")
    await scene.run("update {table} set place = 7 where {is}", 1)
    await scene.run("update {table} set body = 'x' where {is}", 2)
    await scene.run("update {table} set {key} = 9 where {is}", 3)
    await scene.run("delete from {table} where {is}", 4)
    assert sorted(await scene.log()) == [((1,), 2), ((2,), 3), ((3,), 3), ((4,), 3), ((9,), 3)]
    absorbed = await scene.absorb()
    assert absorbed.enqueued == {"articles.embed": 4, "articles.search": 5}


async def test_keys_that_swap_and_updates_of_many_rows(conn):
    """Keys that move along: each key whose row is another now is logged, and no other."""
    scene = await prepared(conn, "bigint", "plain")
    await scene.run("alter table {table} drop constraint articles_pkey, add primary key (id_1) deferrable")
    await scene.run("update {table} set id_1 = id_1 + 1 where id_1 >= 3")  # 3 4 5 → 4 5 6
    assert sorted(await scene.log()) == [((3,), 3), ((4,), 3), ((5,), 3), ((6,), 3)]
    await scene.settle()
    assert await scene.in_step()


VALUES = {
    "json": ("'{\"a\": 1}'", "'{\"a\":  1}'"),
    "jsonb": ("'[1]'", "'[2]'"),
    "numeric": ("1.0", "1.00"),
    "double precision": ("0.1", "0.1::float8 + 1.4e-17"),
    "text": ("'a'", "'A'"),
    "citext": ("'a'", "'A'"),
    "interval": ("'1 day'", "'24 hours'"),
    "bytea": ("'\\x00'", "'\\x01'"),
    "text[]": ("'{a}'", "'{A}'"),
    "point": ("'(1,2)'", "'(1,3)'"),
    "timestamptz": ("'2020-01-01'", "null"),
    "mood": ("'good'", "'bad'"),
    "pair": ("row(1, 2)", "row(1, 3)"),
    "domain_of_text": ("'a'", "'A'"),
}


@pytest.mark.parametrize("session", ["origin", "replica"])
async def test_any_type_is_compared_as_what_it_would_be_written_as(conn, session):
    """json has no equality, a collation may hide a change of case, numeric 1.0 equals 1.00: none is missed, and
    none that stays the same is taken for changed."""
    await conn.execute(
        "create extension citext; create type mood as enum ('good', 'bad'); create type pair as (a int, b int); "
        "create domain domain_of_text as citext"
    )
    columns = {f"c{i}": type for i, type in enumerate(VALUES)}
    definitions = ", ".join(f"{name} {type}" for name, type in columns.items())
    scene = await make(conn, columns=definitions + ", note text", watch=[tuple(columns)], eligible="true")
    olds = ", ".join(old for old, _ in VALUES.values())
    await conn.execute(f"insert into articles values (1, {olds})")
    await scene.install()
    await conn.execute(f"set session_replication_role = {session}")
    await conn.execute("set extra_float_digits = 0")
    for name, (old, new) in zip(columns, VALUES.values(), strict=True):
        await scene.run("update {table} set note = 'x'")
        assert await scene.log() == [], name
        await conn.execute(f"update articles set {name} = {new}")
        assert await scene.log() == [((1,), 1)], columns[name]
        await conn.execute(f"update articles set {name} = {old}")
        await conn.execute("truncate instep.change_articles; delete from instep.marker")
    assert await scene.run("select * from instep.marker") == []


async def test_insert_on_conflict_merge_and_copy(conn):
    """Statements that fire several events, some with empty transition tables, and COPY."""
    scene = await prepared(conn, "bigint", "plain")
    await scene.run(
        "insert into {table} ({key}, body) values (1, 'again'), (11, 'new') "
        "on conflict ({key}) do update set body = excluded.body"
    )
    assert sorted(await scene.log()) == [((1,), 3), ((11,), 3)]
    await scene.settle()
    await scene.run("insert into {table} ({key}, body) values (1, 'no') on conflict do nothing")
    assert await scene.log() == []
    await scene.run(
        "merge into {table} as a using (values (2, 'x'), (3, null), (12, 'y')) as v(id, body) on a.id_1 = v.id "
        "when matched and v.body is null then delete when matched then update set body = v.body "
        "when not matched then insert (id_1, body) values (v.id, v.body)"
    )
    assert sorted(await scene.log()) == [((2,), 3), ((3,), 3), ((12,), 3)]
    async with conn.cursor() as cursor, cursor.copy("copy articles (id_1, body) from stdin") as copy:
        await copy.write("20\tone\n21\ttwo\n")
    assert ((21,), 3) in await scene.log()
    await scene.settle()
    assert await scene.in_step()


async def test_c1_4_cascades_reach_the_log(conn):
    """A DELETE that cascades from another table, row by row, and a TRUNCATE CASCADE."""
    scene = await prepared(conn, "bigint", "plain")
    await conn.execute(
        "create table authors (id bigint primary key); insert into authors select generate_series(1, 5)"
    )
    await conn.execute("alter table articles add foreign key (id_1) references authors on delete cascade")
    await conn.execute("delete from authors where id in (2, 4)")
    assert sorted(await scene.log()) == [((2,), 3), ((4,), 3)]
    await scene.settle()
    assert set(await scene.derived()) == {(1,), (3,), (5,)}
    await conn.execute("truncate authors cascade")
    await scene.settle()
    assert await scene.derived() == {}


async def test_c1_4_deleting_100_thousand_rows_leaves_no_derived_row(conn):
    scene = await make(conn, watch=[("body",)])
    await scene.run("insert into {table} (id_1, body) select i, 'x' from generate_series(1, 100000) as i")
    await scene.install()
    await conn.execute("insert into instep.stamp_articles_embed select id_1, 't1', 'x'::bytea from articles")
    await scene.run("delete from {table}")
    absorbed = await scene.absorb(10_000)
    assert absorbed == Absorbed(100_000, {"articles.embed": 100_000})
    assert await scene.log() == []


@pytest.mark.parametrize("shape", ["plain", "partitioned"])
async def test_c1_13_rows_applied_by_replication_reach_the_log(conn, shape):
    """pgai#557: an applying session fires no statement triggers for rows; and none is logged twice in origin."""
    scene = await prepared(conn, "bigint", shape)
    await conn.execute("set session_replication_role = replica; set search_path = ''")
    await scene.run("insert into {table} (id_1, body) values (6, 'x')")
    await scene.run("update {table} set note = 'unwatched'")
    await scene.run("update {table} set body = 'changed', id_1 = 7 where id_1 = 2")
    await scene.run("update {table} set place = 1 where id_1 = 1")
    await scene.run("delete from {table} where id_1 = 4")
    await conn.execute("set session_replication_role = origin; set search_path = public")
    assert sorted(await scene.log()) == [((1,), 2), ((2,), 3), ((4,), 3), ((6,), 3), ((7,), 3)]
    await scene.settle()
    assert await scene.in_step()
    await conn.execute("set session_replication_role = replica")
    await scene.run("truncate {table}")
    await conn.execute("set session_replication_role = origin")
    await scene.settle()
    assert await scene.derived() == {}


@pytest.mark.parametrize("session", ["origin", "replica"])
async def test_a_failing_read_lets_the_users_statement_pass(conn, session):
    """A watched column was renamed: capture cannot know what changed, marks it, and never breaks the write."""
    scene = await prepared(conn, "bigint", "plain")
    await conn.execute("alter table articles rename body to words")
    await conn.execute(f"set session_replication_role = {session}")
    await scene.run("update {table} set words = 'x' where {is}", 1)
    await conn.execute("set session_replication_role = origin")
    assert await scene.run("select words from {table} where {is}", 1) == [("x",)]
    assert await scene.run("select source, kind from instep.marker") == [("articles", "suspect")]
    await scene.run("insert into {table} (id_1, words) values (6, 'keys can still be read')")
    assert await scene.log() == [((6,), 3)]


async def test_many_statements_in_one_transaction_overflow_no_subtransaction_cache(conn):
    """The function reads inside its exception block and writes outside: 200 statements take no subtransaction id
    (64 fit into the server's cache). Both kinds of trigger."""
    scene = await prepared(conn, "bigint", "plain")
    for session in ("origin", "replica"):
        async with conn.transaction():
            await conn.execute(f"set local session_replication_role = {session}")
            for i in range(200):
                await scene.run("update {table} set body = %s where {is}", f"{session} {i}", i % 5 + 1)
            rows = await scene.run(
                "select s.* from pg_stat_get_backend_idset() as b, pg_stat_get_backend_subxact(b) as s "
                "where pg_stat_get_backend_pid(b) = pg_backend_pid()"
            )
            assert rows == [(0, False)]
    assert len(await scene.log()) == 400


async def test_a_statement_on_a_partition_reaches_the_log(conn):
    """It fires that partition's triggers alone; one on the parent, the parent's alone: neither is logged twice."""
    scene = await prepared(conn, "integer", "partitioned")
    await conn.execute("insert into articles_low (id_1, body) values (0, 'x')")
    await conn.execute("update articles_high set body = 'x' where id_1 = 4")
    await conn.execute("delete from articles_low where id_1 = 1")
    await conn.execute(
        "update articles set body = 'moved', id_1 = 10 where id_1 = 2"
    )  # to the other partition
    assert sorted(await scene.log()) == [((0,), 3), ((1,), 3), ((2,), 3), ((4,), 3), ((10,), 3)]
    await conn.execute("truncate articles_high")
    await scene.settle()
    assert await scene.in_step()


async def test_inheritance_children_are_captured(conn):
    scene = await make(conn)
    await conn.execute("create table child (extra text, primary key (id_1)) inherits (articles)")
    await scene.install()
    await conn.execute("insert into child (extra, id_1, body) values ('e', 1, 'x')")
    await conn.execute("update articles set body = 'y'")
    assert await scene.log() == [((1,), 3), ((1,), 3)]
    await conn.execute(
        "set session_replication_role = replica; delete from child; set session_replication_role = origin"
    )
    assert len(await scene.log()) == 3


async def test_dropped_and_generated_columns(conn):
    """Gaps in the row type, and a stored generated column that is watched through what it is made from."""
    scene = await make(
        conn,
        columns="gone int, body text, also_gone text, shout text generated always as (upper(body)) stored",
        watch=[("shout",)],
        eligible="true",
    )
    await conn.execute("alter table articles drop gone, drop also_gone")
    await scene.put(1)
    await scene.install()
    await conn.execute("update articles set body = 'x'")
    await conn.execute("alter table articles add later int default 5")
    await conn.execute("update articles set body = 'y'")
    await conn.execute("update articles set body = 'Y'")  # the generated column stays the same
    assert await scene.log() == [((1,), 1)] * 2


async def test_a_virtual_generated_column_is_refused(conn):
    """A trigger sees NULL in it, whatever it holds."""
    if conn.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    scene = await make(
        conn, columns="body text, loud text generated always as (upper(body)) virtual", watch=[("loud",)]
    )
    with pytest.raises(Refused, match="virtual generated column"):
        await scene.install()
    assert await scene.run("select * from instep.source") == []


async def test_the_applications_role_needs_no_right_on_our_schema(conn):
    """Also for a role that owns a partitioned table: a new partition inherits the row trigger."""
    role = f"application_{conn.info.dbname}"
    scene = await make(conn, shape="partitioned")
    await conn.execute(f"create role {role}; grant create, usage on schema public to {role}")
    await conn.execute(f"alter table articles owner to {role}; alter table articles_high owner to {role}")
    await scene.install()
    await conn.execute(f"set role {role}")
    await scene.put(1, 4)
    await scene.run("update {table} set body = 'x'")
    await conn.execute("create table articles_more (like articles including all)")
    await conn.execute("drop table articles_high")
    await conn.execute(
        "alter table articles attach partition articles_more for values from (3) to (maxvalue)"
    )
    await scene.run("delete from {table}")
    await conn.execute("truncate articles")
    with pytest.raises(pg.InsufficientPrivilege):
        await conn.execute("select * from instep.change_articles")
    await conn.execute("reset role")
    assert len(await scene.log()) == 5
    await conn.execute(f"drop owned by {role} cascade; drop role {role}")


async def test_the_update_functions_plan_serves_one_row_and_many(conn):
    """The session caches it: after updates of one row, an inner join stayed a nested loop over 20,000 × 20,000."""
    scene = await make(conn, watch=[("body",)])
    await scene.run("insert into {table} (id_1, body) select i, 'x' from generate_series(1, 2000) as i")
    await scene.install()
    for i in range(8):  # so that a generic plan is in use
        await scene.run("update {table} set body = 'one' where {is}", i)
    plans: list[str] = []
    conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    await conn.execute(
        "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on; "
        "set auto_explain.log_nested_statements = on; set auto_explain.log_level = notice"
    )
    await scene.run("update {table} set body = 'many'")
    await conn.execute("set auto_explain.log_min_duration = -1")
    (plan,) = (plan for plan in plans if "old_rows" in plan)
    assert "Full Join" in plan
    assert "Nested Loop" not in plan
    assert len(await scene.log()) == 2007


@pytest.mark.session("the user's session has a lock_timeout of its own")
async def test_the_users_writes_never_wait_for_a_worker(conn, dsn):
    """While a worker's absorb is open on the same keys, the user's writes return: a wait for a lock would be an
    error here. TRUNCATE alone waits, for that one statement."""
    scene = await prepared(conn, "bigint", "plain")
    await scene.run("update {table} set body = 'x'")
    absorber = Absorber(scene.source, scene.declarations)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as user:
        await user.execute("set lock_timeout = '1ms'")
        mine = Scene(user, scene.source, scene.declarations)
        async with conn.transaction():
            await conn.execute(absorber._statement, {"source": scene.source.name, "cursor": 0, "limit": 100})
            await mine.run("update {table} set body = 'y'")
            await mine.run("delete from {table} where {is}", 1)
            await mine.run("insert into {table} (id_1, body) values (1, 'again')")
            await mine.run("update {table} set {key} = 77 where {is}", 2)
            with pytest.raises(pg.LockNotAvailable):
                await mine.run("truncate {table}")
        await mine.run("truncate {table}")
    await scene.settle()
    assert await scene.in_step()


async def test_c4_47_duplicates_never_abort_a_business_transaction(conn):
    """procrastinate#1432: the same row changed often in one transaction, with an entry that waits already."""
    scene = await prepared(conn, "bigint", "plain")
    await scene.run("update {table} set body = 'waits' where {is}", 1)
    await scene.absorb()
    async with conn.transaction():
        for i in range(5):
            await scene.run("update {table} set body = %s where {is}", f"v{i}", 1)
    assert (await scene.absorb()).taken == 5
    assert await scene.entries("generation") == {(1,): (2,)}


async def test_adding_a_derivation_widens_the_mask(conn):
    """Without a lock on the user's table: another session reads and writes it in the meantime."""
    scene = await make(conn)
    both = scene.declarations
    scene.declarations = both[:1]
    await scene.install()
    await scene.put(1)
    scene.declarations = both
    async with conn.transaction():
        await scene.run("update {table} set note = 'x'")
    await scene.install()
    await scene.run("update {table} set place = 5")
    assert await scene.log() == [((1,), 1), ((1,), 2)]
