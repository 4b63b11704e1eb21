"""Claims, leases, releases and failures, by plain SQL on a real server."""

import asyncio

import pytest
from world import World

from instep.engine.dead import DeadLetters
from instep.engine.outbox import SUSPECT_CLAIMS, Failure


@pytest.fixture
async def world(dsn, conn):
    world = await World.make(dsn, conn)
    yield world
    for opened in world.opened:
        await opened.close()


async def waiting(world: World, rows: int, posted: str = "null") -> None:
    await world.conn.execute(
        f"insert into articles (id, title, posted) select g, 't' || g, {posted} from generate_series(1, {rows}) g"
    )
    await world.absorb()


async def test_newest_first_and_the_cursor_goes_on_below(world):
    await waiting(world, 10, "timestamptz '2026-01-01' + g * interval '1 day'")
    outbox = world.outbox()
    first = await outbox.claim(world.conn, 4, 1)
    second = await outbox.claim(world.conn, 4, 2)
    assert [e.key[0] for e in first] == [10, 9, 8, 7]
    assert [e.key[0] for e in second] == [6, 5, 4, 3]


async def test_one_claim_in_eight_takes_the_oldest(world):
    await waiting(world, 20, "timestamptz '2026-01-01' + g * interval '1 day'")
    outbox = world.outbox()
    claimed = [(await outbox.claim(world.conn, 1, token))[0].key[0] for token in range(1, 9)]
    assert claimed == [20, 19, 18, 17, 16, 15, 14, 1]


async def test_what_arrives_above_the_cursor_is_found_before_the_claim_comes_back_empty(world):
    await waiting(world, 3, "timestamptz '2026-01-01' + g * interval '1 day'")
    outbox = world.outbox()
    await outbox.claim(world.conn, 3, 1)
    await world.conn.execute("insert into articles values (99, 'late', true, now())")
    await world.absorb()
    assert [e.key[0] for e in await outbox.claim(world.conn, 3, 2)] == [99]


async def test_each_order_goes_on_from_where_it_was(world):
    """Else every claim of the oldest walks over all that the earlier ones have left dead under an old snapshot."""
    await waiting(world, 40, "timestamptz '2026-01-01' + g * interval '1 day'")
    outbox = world.outbox()
    claimed = [(await outbox.claim(world.conn, 1, token))[0].key[0] for token in range(1, 17)]
    assert (claimed[7], claimed[15]) == (1, 2)
    assert outbox._cursor["oldest"].key == (2,)
    # A row that is older than the cursor waits until the order starts anew.
    await world.conn.execute("insert into articles values (99, 'old', true, '2020-01-01')")
    await world.absorb()
    later = [(await outbox.claim(world.conn, 1, token))[0].key[0] for token in range(17, 25)]
    assert later[7] == 3


async def test_two_claimers_never_share_an_entry(world):
    await waiting(world, 400)
    conns = [await world.dedicated() for _ in range(4)]

    async def take(conn, token):
        outbox, taken = world.outbox(), []
        while entries := await outbox.claim(conn, 7, token):
            taken += [e.key[0] for e in entries]
        return taken

    taken = await asyncio.gather(*(take(conn, i + 1) for i, conn in enumerate(conns)))
    everything = [key for part in taken for key in part]
    assert sorted(everything) == list(range(1, 401))


async def test_leases_are_judged_by_the_database(world):
    await waiting(world, 1)
    short, other = world.outbox(lease_seconds=0.05), world.outbox()
    assert await short.claim(world.conn, 1, 1)
    assert not await other.claim(world.conn, 1, 2)
    await asyncio.sleep(0.1)
    assert [e.claims for e in await other.claim(world.conn, 1, 2)] == [2]


async def test_a_stale_holder_changes_nothing(world):
    """PEERS C3 35, 37, 38: the owner is a token of this claim, not a worker's name."""
    await waiting(world, 1)
    outbox = world.outbox(lease_seconds=0.01)
    (entry,) = await outbox.claim(world.conn, 1, 1)
    await asyncio.sleep(0.05)
    (again,) = await world.outbox().claim(world.conn, 1, 2)
    before = await world.entry(1)
    assert await outbox.renew(world.conn, 1, [entry.key]) == 0
    assert await outbox.release(world.conn, 1, [entry.key]) == 0
    assert await outbox.park(world.conn, 1, [entry.key]) == 0
    recorded = await outbox.fail(world.conn, 1, [Failure(entry, "x", "late", True, None)])
    assert recorded.superseded == 1
    assert await world.entry(1) == before
    assert await outbox.renew(world.conn, 2, [again.key]) == 1


async def test_a_release_takes_its_claim_back_and_is_claimable_at_once(world):
    """PEERS C6 69."""
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 1)
    assert await outbox.release(world.conn, 1, [entry.key]) == 1
    row = await world.entry(1)
    assert (row["claims"], row["attempts"], row["token"], row["lease_until"]) == (0, 0, None, None)
    assert await world.outbox().claim(world.conn, 1, 2)


async def test_a_parked_entry_waits_as_long_as_its_lease_would_have_lasted(world):
    await waiting(world, 1)
    outbox = world.outbox(lease_seconds=0.2)
    (entry,) = await outbox.claim(world.conn, 1, 1)
    lease = (await world.entry(1))["lease_until"]
    await outbox.park(world.conn, 1, [entry.key])
    row = await world.entry(1)
    assert (row["not_before"], row["claims"], row["token"]) == (lease, 0, None)
    assert not await world.outbox().claim(world.conn, 1, 2)
    assert await outbox.let_in(world.conn) == 0
    await asyncio.sleep(0.25)
    assert await outbox.let_in(world.conn) == 1
    assert await world.outbox().claim(world.conn, 1, 2)


async def test_a_failure_costs_an_attempt_and_waits_longer_each_time(world):
    await waiting(world, 1)
    outbox, waits = world.outbox(), []
    for attempt in (1, 2):
        (entry,) = await world.outbox().claim(world.conn, 1, attempt)
        recorded = await outbox.fail(world.conn, attempt, [Failure(entry, "boom", "it broke", False, b"h")])
        row = await world.entry(1)
        assert (recorded.failed, row["attempts"], row["error_kind"], row["last_error"]) == (
            1,
            attempt,
            "boom",
            "it broke",
        )
        seconds = "select extract(epoch from not_before - now())::float8 from instep.outbox_articles_embed"
        waits.append((await (await world.conn.execute(seconds)).fetchone())[0])
        await world.conn.execute("update instep.outbox_articles_embed set not_before = null")
    assert 3 < waits[0] < 5
    assert 6 < waits[1] < 10
    (entry,) = await world.outbox().claim(world.conn, 1, 3)
    assert (await outbox.fail(world.conn, 3, [Failure(entry, "boom", "it broke", False, b"h")])).dead == 1
    row = await world.entry(1)
    assert row["failed_at"] is not None
    assert bytes(row["failed_hash"]) == b"h"


async def test_a_deterministic_failure_is_dead_at_once(world):
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 1)
    recorded = await outbox.fail(world.conn, 1, [Failure(entry, "input refused", "no", True, None)])
    assert (recorded.dead, recorded.failed) == (1, 0)
    # Nobody had loaded it: its hash is read then.
    assert (await world.entry(1))["failed_hash"] is not None


async def test_a_failure_of_content_that_was_mended_meanwhile_is_given_back_uncounted(world):
    """Found by protocol_model.py: else the fix waits behind a dead letter of the old content."""
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 1)
    await world.conn.execute("update articles set title = 'mended'")
    await world.absorb()
    recorded = await outbox.fail(world.conn, 1, [Failure(entry, "input refused", "no", True, b"old hash")])
    row = await world.entry(1)
    assert (recorded.given_back, row["attempts"], row["failed_at"], row["token"]) == (1, 0, None, None)


async def test_a_failure_of_unchanged_content_counts_although_the_generation_moved(world):
    """Else frequent sweeps would keep a bad item for ever."""
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 1)
    await world.conn.execute("update instep.outbox_articles_embed set generation = generation + 1")
    sha = "select instep.content_hash(instep.part(title)) from articles"
    loaded = (await (await world.conn.execute(sha)).fetchone())[0]
    assert (await outbox.fail(world.conn, 1, [Failure(entry, "input refused", "no", True, loaded)])).dead == 1


async def test_five_claims_without_a_result_then_alone_then_lost(world):
    await waiting(world, 3)
    outbox = world.outbox(lease_seconds=0.0)
    for token in range(1, SUSPECT_CLAIMS + 1):
        assert len(await world.outbox(lease_seconds=-1).claim(world.conn, 10, token)) == 3
    assert await world.outbox().claim(world.conn, 10, 50) == []
    assert await outbox.bury_lost(world.conn) == 0
    alone = await world.outbox(lease_seconds=-1).claim_suspect(world.conn, 51)
    assert len(alone) == 1
    assert await outbox.bury_lost(world.conn) == 1
    row = await world.entry(alone[0].key[0])
    assert (row["error_kind"], row["attempts"]) == ("lost", 0)
    assert "5 claims" in row["last_error"] or "6 claims" in row["last_error"]


async def test_a_thousand_entries_of_one_sort_key_are_all_claimed(world):
    """The cursor compares sort key and key together: equal sort keys neither repeat nor vanish."""
    await waiting(world, 1000, "timestamptz '2026-01-01'")
    outbox, seen = world.outbox(), []
    while entries := await outbox.claim(world.conn, 90, 1):
        seen += [e.key[0] for e in entries]
    assert sorted(seen) == list(range(1, 1001))


@pytest.mark.parametrize("act", ["release", "park", "renew", "fail"])
async def test_a_release_that_meets_an_absorb(world, act):
    """The row is counted up while the statement waits for it: it must still be changed, not left to its lease."""
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 7)
    other = await world.dedicated()
    await other.execute("begin")
    await other.execute("update instep.outbox_articles_embed set generation = generation + 1")
    if act == "fail":
        acting = asyncio.create_task(
            outbox.fail(world.conn, 7, [Failure(entry, "boom", "it broke", False, None)])
        )
    else:
        acting = asyncio.create_task(getattr(outbox, act)(world.conn, 7, [entry.key]))
    await asyncio.sleep(0.3)
    assert not acting.done()
    await other.execute("commit")
    result = await acting
    assert result.superseded == 0 if act == "fail" else result == 1
    row = await world.entry(1)
    assert row["token"] == (7 if act == "renew" else None)


async def test_a_replay_that_meets_a_sweep(world):
    await waiting(world, 1)
    outbox = world.outbox()
    (entry,) = await outbox.claim(world.conn, 1, 7)
    await outbox.fail(world.conn, 7, [Failure(entry, "boom", "it broke", True, None)])
    other = await world.dedicated()
    await other.execute("begin")
    await other.execute("update instep.outbox_articles_embed set generation = generation + 1")
    replaying = asyncio.create_task(DeadLetters(world.declaration).replay(world.conn))
    await asyncio.sleep(0.3)
    await other.execute("commit")
    assert await replaying == 1
    assert (await world.entry(1))["failed_at"] is None
