"""Work is found by comparing state: losing the queue loses nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import psycopg
import pytest
from finding_scene import KEYS, bypass, fields, make, swept
from psycopg.pq import TransactionStatus

from instep.engine import sweep
from instep.engine.absorb import Absorber
from instep.engine.sweep import Piece, Sweeper
from instep.errors import Configuration


async def test_what_is_in_step_gives_no_work(conn):
    scene = await swept(conn, 5)
    await bypass(scene, "insert into {table} (id_1, published) values (6, false)")  # needs no entry
    assert await scene.sweep() == Piece(0, 6)
    assert await scene.entries("target") == {}


@pytest.mark.parametrize("key", KEYS)
async def test_everything_that_is_out_of_step_is_found(conn, key):
    """Never made, made from other content, not eligible any more, gone: and nothing else. C1-14: by hash, not by
    presence."""
    scene = await make(conn, key)
    await scene.put(1, 2, 3, 4, 5)
    await scene.install()
    await scene.sweep()
    await scene.work()
    await conn.execute("drop table if exists nothing; alter table articles disable trigger all")
    await scene.put(6)
    await scene.run("update {table} set body = 'other' where {is}", *scene.key(2))
    await scene.run("update {table} set published = null where {is}", *scene.key(3))
    await scene.run("delete from {table} where {is}", *scene.key(4))
    assert await scene.sweep() == Piece(4, 5)
    keys = {scene.key(i) for i in (2, 3, 4, 6)}
    assert set(await scene.entries("target")) == keys
    await scene.work()
    assert await scene.in_step_of(scene.embed)
    assert await scene.sweep() == Piece(0, 5)


async def test_another_target_is_another_output(conn):
    """What one target has made says nothing of another; a retired one needs nothing."""
    scene = await swept(conn, 3)
    await conn.execute(
        "insert into instep.target (derivation, source, bit, target, state) values "
        "('articles.embed', 'articles', 1, 't2', 'filling'), ('articles.embed', 'articles', 1, 't3', 'retired')"
    )
    assert (await scene.sweep()).enqueued == 3
    rows = await scene.run("select distinct target from instep.outbox_articles_embed")
    assert rows == [("t2",)]


async def test_an_empty_source_is_no_failed_scan(conn):
    """C1-9: everything that was made is to be cleared where the source is truly empty; a scan that fails clears
    nothing."""
    scene = await swept(conn, 3)
    await conn.execute("alter table articles rename to elsewhere")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await scene.sweep()
    assert await scene.entries("target") == {}
    await conn.execute("alter table elsewhere rename to articles")
    await bypass(scene, "truncate {table}")
    assert (await scene.sweep()).enqueued == 3


async def test_null_hashes_neither_loop_nor_hide(conn):
    scene = await make(conn)
    scene.declarations = (
        sweep.Declaration(
            **{**fields(scene.embed), "hash": "case when place > 0 then sha256(body::bytea) end"}
        ),
    )
    await scene.run("insert into {table} (id_1, body, place) values (1, 'x', 0), (2, 'x', 1)")
    await scene.install()
    assert (await scene.sweep()).enqueued == 2  # never made, though there is no hash to differ
    await scene.work()
    assert (await scene.derived())[(1,)] is None
    assert (await scene.sweep()).enqueued == 0  # no loop
    await bypass(scene, "update {table} set place = 1 - place")
    assert (await scene.sweep()).enqueued == 2  # in both directions
    await scene.work()
    assert (await scene.sweep()).enqueued == 0


STATES = {  # what a write that nobody saw does to a row, the hash that failed, and whether the dead letter revives
    "same": ("note = 'x'", "instep.content_hash(instep.part(body))", False),
    "other": ("body = 'other'", "'old'::bytea", True),
    "unknown": ("body = 'other'", "null", False),
    "ineligible": ("published = false", "'old'::bytea", True),
    "ineligible, unknown": ("published = null", "null", True),
    "gone": ("", "null", True),
}


async def test_dead_letters_are_revived_only_as_written(conn):
    """Of other content than failed, or of a row that is not eligible any more; a hash that nobody knows revives
    only with the row's end. Stamped or not, discarded or not. One that stays dead is not even locked."""
    cases = [(state, s, d) for state in STATES for s in (True, False) for d in (True, False)]
    scene = await swept(conn, len(cases))
    await conn.execute(
        "update instep.stamp_articles_embed set content_hash = 'old'"
    )  # so that all are out of step
    revived = {}
    await conn.execute("alter table articles disable trigger all")
    for number, (state, stamped, discarded) in enumerate(cases, 1):
        change, hash, revived[number,] = STATES[state]
        await scene.run(
            "insert into instep.outbox_articles_embed (key_1, target, sort_key, failed_at, failed_hash, attempts, "
            f"error_kind, last_error, enqueued_at) select id_1, 't1', now(), now(), {hash}, 3, 'error', 'x', "
            "'2020-01-01' from {table} where id_1 = %s",
            number,
        )
        if not stamped:
            await scene.run("delete from instep.stamp_articles_embed where key_1 = %s", number)
        if discarded:
            await scene.run(
                "update instep.outbox_articles_embed set discarded_at = now() where key_1 = %s", number
            )
        await scene.run(
            f"update {{table}} set {change} where id_1 = %s"
            if change
            else "delete from {table} where id_1 = %s",
            number,
        )
    before = await scene.entries("xmin::text, xmax::text")
    assert (await scene.sweep()).enqueued == sum(revived.values())
    after = await scene.entries("xmin::text, xmax::text")
    assert {key: after[key] != before[key] for key in after} == revived
    columns = (
        "failed_at, failed_hash, discarded_at, discard_reason, error_kind, last_error, attempts, claims, "
        "enqueued_at > '2020-01-02', token, lease_until, not_before"
    )
    alive = (*[None] * 6, 0, 0, True, None, None, None)
    assert {key: row == alive for key, row in (await scene.entries(columns)).items()} == revived


async def test_waiting_entries_are_not_touched(conn):
    """Nor parked ones: they will load what is there then. Not even locked."""
    scene = await swept(conn, 2)
    await bypass(scene, "update {table} set body = 'other'")
    await scene.sweep()
    await conn.execute(
        "update instep.outbox_articles_embed set not_before = now() + '1 h', attempts = 1 where key_1 = 2"
    )
    before = await scene.entries("xmin::text, xmax::text, generation, attempts, not_before")
    await bypass(scene, "update {table} set body = 'another'")
    assert await scene.sweep() == Piece(0, 2)
    assert await scene.entries("xmin::text, xmax::text, generation, attempts, not_before") == before


@pytest.mark.parametrize("lease", ["2099-01-01", "2020-01-01"])
@pytest.mark.parametrize("changed", [True, False])
async def test_an_entry_with_a_token_is_counted_up(conn, lease, changed):
    """Its holder may have loaded before a write that capture did not see; without this its commit would remove the
    entry after the sweep has passed. Also where the content is again what the stamp says: the holder may have
    loaded what was there in between."""
    scene = await swept(conn, 1)
    await conn.execute(
        "insert into instep.outbox_articles_embed (key_1, target, sort_key, token, lease_until, attempts, claims) "
        f"values (1, 't1', now(), 7, '{lease}', 2, 1)"
    )
    if changed:
        await bypass(scene, "update {table} set body = 'other'")
    assert (await scene.sweep()).enqueued == 1
    columns = f"generation, token, lease_until = '{lease}', attempts, claims, failed_hash"
    assert await scene.entries(columns) == {(1,): (2, 7, True, 2, 1, None)}


async def test_the_locked_row_decides_not_the_snapshot(conn, dsn):
    """While the sweep waits for an entry, its holder records a failure of the present content: it stays dead."""
    scene = await swept(conn, 1)
    await bypass(scene, "update {table} set body = 'other'")
    await conn.execute(
        "insert into instep.outbox_articles_embed (key_1, target, sort_key, token, lease_until) "
        "values (1, 't1', now(), 7, '2099-01-01')"
    )
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute(
            "update instep.outbox_articles_embed set token = null, lease_until = null, failed_at = now(), "
            "failed_hash = (select instep.content_hash(instep.part(body)) from articles)"
        )
        task = asyncio.create_task(scene.sweep())
        await asyncio.sleep(0.3)
        assert not task.done()
        await holder.commit()
        assert (await task).enqueued == 0
    assert await scene.entries("failed_at is null, generation") == {(1,): (False, 1)}


@pytest.mark.parametrize("key", KEYS)
async def test_pieces_are_bounded_and_leave_nothing_out(conn, key):
    """Gaps of the source, filled by stamps and entries of rows that are gone, at both ends too."""
    scene = await make(conn, key)
    await scene.put(*range(1, 41))
    await scene.install()
    await scene.sweep()
    await scene.work()
    await conn.execute("alter table articles disable trigger all")
    for number in [*range(1, 15), 20, *range(33, 41)]:
        await scene.run("delete from {table} where {is}", *scene.key(number))
    await scene.put(0, 50, 51)
    for size in (1, 3, 100):
        seen = []
        async for piece in Sweeper(scene.embed, scene.targets, size).pieces(conn):
            assert (
                conn.info.transaction_status == TransactionStatus.IDLE
            )  # no snapshot is held between pieces
            assert piece.keys_seen <= size + 1
            assert piece.enqueued <= 2 * (size + 1)
            seen.append(piece)
        assert sum(piece.keys_seen for piece in seen) == 20
        assert sum(piece.enqueued for piece in seen) == 26
        await conn.execute("truncate instep.outbox_articles_embed")
    await scene.sweep()
    await scene.work()
    assert await scene.in_step_of(scene.embed)


async def test_losing_the_queue_loses_nothing(conn):
    scene = await swept(conn, 5)
    await scene.run("update {table} set body = 'other' where id_1 > 3")
    await scene.run("delete from {table} where id_1 = 1")
    await scene.absorb()
    await conn.execute("truncate instep.outbox_articles_embed, instep.change_articles")
    assert (await scene.sweep()).enqueued == 3
    await scene.work()
    assert await scene.in_step_of(scene.embed)


async def test_a_retired_target_ends_the_sweep(conn):
    scene = await swept(conn, 3)
    await bypass(scene, "update {table} set body = 'other'")
    await conn.execute("update instep.target set state = 'retired' where derivation = 'articles.embed'")
    assert (await scene.sweep()).enqueued == 0


@pytest.mark.parametrize(("code", "kind"), [("XX001", "data corruption"), ("22012", "unreadable row")])
async def test_a_row_that_cannot_be_read_is_buried_alone(conn, code, kind):
    """The server itself raises while the piece reads the row: it is halved until two bad rows of 40 stand alone, as
    dead letters; all others are done, orphans beside them too. The next sweep leaves them dead."""
    await conn.execute(
        "create function readable(int) returns bool language plpgsql as $$ begin if $1 = 1 then "
        f"raise exception 'cannot read it' using errcode = '{code}'; end if; return true; end $$"
    )
    scene = await make(conn, eligible="readable(place)")
    await scene.put(*range(1, 41))
    await scene.install()
    await scene.sweep()
    await scene.work()
    await conn.execute("alter table articles disable trigger all")
    await conn.execute("update articles set body = 'other', place = case when id_1 in (7, 23) then 1 end")
    await conn.execute("delete from articles where id_1 in (6, 8, 40)")
    assert await scene.sweep() == Piece(38, 37, 2, 2)
    dead = await scene.entries("error_kind, last_error, failed_hash, attempts, failed_at is not null")
    buried = (kind, "cannot read it", None, 1, True)
    assert {key: row for key, row in dead.items() if row[-1]} == {(7,): buried, (23,): buried}
    before = await scene.entries("failed_at, attempts")
    assert await scene.sweep() == Piece(0, 37, 2)
    assert await scene.entries("failed_at, attempts") == before


async def test_an_expression_that_fails_everywhere_is_no_catalogue_of_dead_letters(conn):
    scene = await make(conn, eligible="1 / (id_1 * 0) > 0")
    await scene.run("insert into {table} (id_1) select generate_series(1, 300)")
    await scene.install()
    with pytest.raises(Configuration, match="division by zero"):
        await scene.sweep()
    assert len(await scene.entries("failed_at")) == sweep.MOST_UNREADABLE


def _overwrite_second_page(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:8192] + b"\xff" * 8192 + content[16384:])


async def test_damage_that_hides_the_keys_is_told(conn, dsn):
    """A page of the table itself is damaged: not even its keys can be read, so the sweep says where, and clears
    nothing."""
    if conn.info.server_version < 180000:
        pytest.skip("only PostgreSQL 18 can be told to forget a page")
    scene = await swept(conn, 300)
    (path,) = (await scene.run("select pg_relation_filepath('articles')"))[0]
    (directory,) = (await scene.run("show data_directory"))[0]
    await conn.execute("create extension pg_buffercache; checkpoint")
    _overwrite_second_page(Path(directory, path))
    await conn.execute("select pg_buffercache_evict_relation('articles')")
    with pytest.raises(sweep.Permanent, match="cannot be read"):
        await scene.sweep()
    assert await scene.entries("target") == {}


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_of_writes_and_runs_ends_in_step(conn, seed):
    """Writes that capture sees need absorb alone; those that it does not see, a sweep: at any moment of a random
    history of writes, absorbs, sweeps and work, with pieces of any size."""
    chance = random.Random(seed)
    scene = await make(conn, "composite", "partitioned")
    await scene.install()

    async def write() -> None:
        number = chance.randrange(12)
        statement = chance.choice(
            (
                "insert into {table} ({key}, body) values ({values}, %s) on conflict ({key}) do update set body = excluded.body",
                "update {table} set published = not published where {is} and body <> %s",
                "delete from {table} where {is} and body <> %s",
                "update {table} set place = length(%s) where true or {is}",
            )
        )
        order = statement.index("%s") < statement.index("{is}") if "{is}" in statement else False
        text = f"text {chance.randrange(3)}"
        await scene.run(statement, *((text, *scene.key(number)) if order else (*scene.key(number), text)))

    async def uncaptured() -> None:
        await conn.execute(
            "alter table articles disable trigger all; alter table articles_low disable trigger all"
        )
        await write()
        await conn.execute(
            "alter table articles enable trigger all; alter table articles_low enable trigger all"
        )

    async def sweeps() -> None:
        await scene.sweep(chance.choice(scene.declarations), chance.choice((1, 4, 100)))

    async def work() -> None:
        await scene.work(chance.choice(scene.declarations))

    async def absorb() -> None:
        await Absorber(scene.source, scene.declarations).absorb(conn, chance.choice((1, 5)))

    for declaration in scene.declarations:
        await scene.sweep(declaration)
    for _ in range(80):
        await chance.choice((write, write, write, absorb, work, sweeps))()
    await scene.absorb()
    for declaration in scene.declarations:
        await scene.work(declaration)
    assert await scene.in_step()  # what was captured needs no sweep
    for _ in range(40):
        await chance.choice((write, uncaptured, uncaptured, absorb, work, sweeps))()
    for declaration in scene.declarations:
        await scene.sweep(declaration)
    await scene.absorb()
    for declaration in scene.declarations:
        await scene.work(declaration)
    assert await scene.in_step()
