"""The fence: what a commit may write, and for whom."""

import pytest
from world import World

from instep.engine.commit import Change, Committer
from instep.engine.ports import Output


@pytest.fixture
async def world(dsn, conn):
    world = await World.make(dsn, conn, rows=3)
    await world.absorb()
    yield world
    for opened in world.opened:
        await opened.close()


def committer(world: World) -> Committer:
    return Committer(world.declaration, world.target, world.derivation.sink)


async def claimed(world: World, token: int):
    return sorted(await world.outbox().claim(world.conn, 10, token), key=lambda e: e.key)


def outputs(entries, value="OUT"):
    return [Output(e.key, b"hash of what was loaded", value) for e in entries]


async def test_output_stamp_and_removal_are_one(world):
    entries = await claimed(world, 1)
    done = await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    assert (done.finished, done.superseded, await world.entries()) == (3, 0, [])
    assert await world.outputs() == dict.fromkeys((1, 2, 3), "OUT")
    stamps = await committer(world).stamps(world.conn, [e.key for e in entries])
    assert set(stamps.values()) == {b"hash of what was loaded"}


async def test_a_replaced_token_writes_nothing_at_all(world):
    entries = await claimed(world, 1)
    await world.conn.execute("update instep.outbox_articles_embed set token = 2 where key_1 = 2")
    done = await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    assert (done.finished, done.superseded) == (2, 1)
    assert set(await world.outputs()) == {1, 3}
    assert [row["key_1"] for row in await world.entries()] == [2]
    assert await committer(world).stamps(world.conn, [(2,)]) == {}


async def test_an_entry_absorbed_into_meanwhile_is_given_back(world):
    entries = await claimed(world, 1)
    await world.conn.execute("update articles set title = 'newer' where id = 2")
    await world.absorb()
    done = await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    assert (done.finished, done.given_back) == (2, 1)
    row = await world.entry(2)
    assert (row["token"], row["lease_until"], row["claims"]) == (None, None, 0)


async def test_the_empty_set_is_replaced_too(world):
    entries = await claimed(world, 1)
    await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    await world.conn.execute("update articles set published = false where id = 2")
    await world.absorb()
    entries = await claimed(world, 2)
    done = await committer(world).commit(world.conn, Change(2, entries, cleared=[(2,)]))
    assert list(done.cleared) == [(2,)]
    assert set(await world.outputs()) == {1, 3}
    assert await committer(world).stamps(world.conn, [(2,)]) == {}


async def test_a_retired_target_takes_nothing(world):
    entries = await claimed(world, 1)
    await world.conn.execute("update instep.target set state = 'retired'")
    done = await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    assert done.superseded == 3
    assert await world.outputs() == {}


async def test_a_commit_that_fails_leaves_everything_as_it_was(world):
    entries = await claimed(world, 1)
    before = await world.entries()

    def fail(_):
        raise RuntimeError("in the middle")

    world.derivation.faults.on_write = fail
    with pytest.raises(RuntimeError):
        await committer(world).commit(world.conn, Change(1, entries, outputs(entries)))
    assert await world.entries() == before
    assert await world.outputs() == {}


async def test_round_trips_do_not_depend_on_the_number_of_entries(world):
    await world.insert(500, first=100)
    await world.absorb()

    async def statements(limit: int, token: int) -> int:
        entries = await world.outbox().claim(world.conn, limit, token)
        count = 0
        original = type(world.conn).execute

        async def counting(self, *args, **kwargs):
            nonlocal count
            count += 1
            return await original(self, *args, **kwargs)

        type(world.conn).execute = counting
        try:
            await committer(world).commit(world.conn, Change(token, entries, outputs(entries)))
        finally:
            type(world.conn).execute = original
        return count

    assert await statements(1, 1) == await statements(400, 2)
