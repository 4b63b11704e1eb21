"""Every two mutations of an entry, against each other (PEERS.md C5 65): no deadlock, and an end that one of the two
orders has too. Deterministic: race_scene.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import race_scene
from race_scene import LEASED, MUTATIONS, TOKEN, Races

from instep.database.transactions import transaction

Conn = psycopg.AsyncConnection[Any]
MIDDLE = (2, 5)  # in the middle of the leased wave, and of the dead letters


@pytest.fixture
async def races(dsn: str, conn: Conn) -> AsyncIterator[Races]:
    made = await Races.make(dsn, conn)
    yield made
    await made.close()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds a mutation that the judge must find fault with."""
    return lambda mutation: monkeypatch.setitem(MUTATIONS, mutation.__name__, mutation)


def told(found: dict[tuple[object, ...], list[str]]) -> str:
    return "\n".join(f"{case}: {line}" for case, lines in found.items() for line in lines)


async def pairs(races: Races, *, every_statement: bool) -> dict[tuple[object, ...], list[str]]:
    """The first is held before its commit, or before each of its statements."""
    found: dict[tuple[object, ...], list[str]] = {}
    for first in MUTATIONS:
        last = await races.count(first) - 1
        for second in MUTATIONS:
            for at in range(1, last + 1) if every_statement else (last,):
                if wrong := await races.held(first, second, at):
                    found[first, second, at] = wrong
    return found


async def test_c5_65_every_two_mutations_of_an_entry(races: Races) -> None:
    """absurd 0.1.0: cancel, complete and fail deadlocked."""
    found = await pairs(races, every_statement=False)
    assert not found, told(found)


async def test_c5_65_every_two_mutations_lock_in_one_order(races: Races) -> None:
    found = {}
    names = list(MUTATIONS)
    for place, first in enumerate(names):
        for second in names[place:]:
            if wrong := await races.middle(first, second, MIDDLE):
                found[first, second] = wrong
    assert not found, told(found)  # type: ignore[arg-type]


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_c5_65_every_two_mutations_at_every_statement(races: Races) -> None:
    found = await pairs(races, every_statement=True)
    assert not found, told(found)
    for key in (*LEASED, 4, 5, 6):
        for first in MUTATIONS:
            for second in MUTATIONS:
                wrong = await races.middle(first, second, (key,))
                assert not wrong, (key, first, second, wrong)


async def backwards(races: Races, conn: Conn, who: int) -> object:
    async with transaction(conn):
        return await conn.execute(
            "select 1 from instep.outbox_articles_embed where token = 7 order by key_1 desc for update"
        )


async def release_in_one_statement(races: Races, conn: Conn, who: int) -> object:
    """The shape before docs/decisions/0008."""
    async with transaction(conn):
        return await conn.execute(
            "with mine as materialized (select ctid as place from instep.outbox_articles_embed"
            f" where token = {TOKEN} order by key_1 for update)"
            " update instep.outbox_articles_embed o set lease_until = null, token = null, claims = greatest(claims - 1, 0)"
            " from mine where o.ctid = mine.place"
        )


async def claim_that_waits(races: Races, conn: Conn, who: int) -> object:
    async with transaction(conn):
        return await conn.execute(
            "select 1 from instep.outbox_articles_embed where failed_at is null order by key_1 for update"
        )


async def test_another_order_of_locks_is_found(races: Races, planted: Any) -> None:
    planted(backwards)
    assert "DeadlockDetected" in str(await races.middle("renew", "backwards", MIDDLE))


async def test_a_lost_change_is_found(races: Races, planted: Any) -> None:
    planted(release_in_one_statement)
    assert "key 1" in str(
        await races.held("absorb", "release_in_one_statement", await races.count("absorb") - 1)
    )


async def test_a_claim_that_waits_is_found(
    races: Races, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(claim_that_waits)
    monkeypatch.setattr(race_scene, "NEVER_WAIT", {"claim_that_waits"})
    at = await races.count("renew") - 1
    assert await races.held("renew", "claim_that_waits", at) == ["claim_that_waits waited for renew"]
