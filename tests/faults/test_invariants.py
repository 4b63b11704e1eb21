"""The judge is judged: one thing is broken by hand, and `check` names that and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from embedding_world import DIMENSIONS, EmbeddingWorld
from invariants import NAMES, check, settled
from world import World

from instep.testing.model_server import ModelServer

CHUNK, LAYOUT = "instep.chunk_articles_embed_{id}", "instep.layout_articles_embed_{id}"
OUTBOX, STAMP = "instep.outbox_articles_embed", "instep.stamp_articles_embed"
OF_3 = "where key_1 = 3"
ENTRY = f"insert into {OUTBOX} (key_1, target, sort_key"

PLANTED: dict[str, tuple[str, str]] = {
    "a vector with one number changed": (
        f"update {CHUNK} set vector = (select array_agg(case n when 1 then v + 0.5 else v end order by n)"
        f" from unnest(vector::real[]) with ordinality u(v, n))::vector {OF_3}",
        "wrong vector",
    ),
    "a vector of another text": (
        f"update {CHUNK} set vector = (select vector from {CHUNK} where key_1 = 4) {OF_3}",
        "wrong vector",
    ),
    "a chunk that is gone": (f"delete from {CHUNK} {OF_3}", "missing"),
    "an old text": (f"update {CHUNK} set text = 'title 99' {OF_3}", "stale"),
    "a hash of another text": (f"update {CHUNK} set text_hash = sha256('x') {OF_3}", "stale"),
    "a second chunk": (
        f"insert into {CHUNK} select 3, sha256('old'), 'old', vector from {CHUNK} {OF_3}",
        "duplicate",
    ),
    "a chunk of nobody": (
        f"insert into {CHUNK} select 77, text_hash, text, vector from {CHUNK} {OF_3}",
        "orphan vector",
    ),
    "a chunk of a row that is not eligible": (
        f"insert into {CHUNK} select 6, text_hash, text, vector from {CHUNK} {OF_3}",
        "orphan vector",
    ),
    "a layout of nobody": (
        f"insert into {LAYOUT} values (77, array[sha256('x')], array[0], array[1])",
        "orphan vector",
    ),
    "a layout of one chunk": (
        f"insert into {LAYOUT} values (3, array[sha256('x')], array[0], array[1])",
        "wrong layout",
    ),
    "a stamp of nobody": (
        f"insert into {STAMP} select 77, target, content_hash from {STAMP} {OF_3}",
        "orphan stamp",
    ),
    "a stamp of another target": (
        f"insert into {STAMP} select 3, 'gone-v0', content_hash from {STAMP} {OF_3}",
        "orphan stamp",
    ),
    "a stamp of other content": (f"update {STAMP} set content_hash = sha256('x') {OF_3}", "wrong stamp"),
    "a stamp without a hash": (f"update {STAMP} set content_hash = null {OF_3}", "wrong stamp"),
    "a stamp that is gone": (f"delete from {STAMP} {OF_3}", "missing"),
    "a dead letter of nobody's fault": (
        f"{ENTRY}, failed_at, error_kind) values (3, 'test-v1', now(), now(), 'lost')",
        "dead without failure",
    ),
    "a change in the log": (
        "insert into instep.change_articles (key_1, derivations) values (3, 1)",
        "change left",
    ),
    "a marker": ("insert into instep.marker (source, kind) values ('articles', 'everything')", "marker left"),
}
"""What is done to a world that is in step, and the one violation that follows."""

ENTRIES: dict[str, tuple[str, set[str]]] = {
    "an entry": (f"{ENTRY}) values (3, 'test-v1', now())", {"entry left"}),
    "a lease that runs": (
        f"{ENTRY}, token, lease_until) values (3, 'test-v1', now(), 7, now() + interval '1 h')",
        {"entry left", "stuck lease"},
    ),
    "a lease that ran out": (
        f"{ENTRY}, token, lease_until) values (3, 'test-v1', now(), 7, now() - interval '1 h')",
        {"entry left", "stuck lease"},
    ),
    "a token alone": (f"{ENTRY}, token) values (3, 'test-v1', now(), 7)", {"entry left", "stuck lease"}),
    "an attempt": (f"{ENTRY}, attempts) values (3, 'test-v1', now(), 1)", {"entry left", "attempts without failure"}),
    "a dead letter of nothing": (
        f"{ENTRY}, failed_at, error_kind) values (77, 'test-v1', now(), now(), 'lost')",
        {"dead without failure", "orphan dead letter"},
    ),
}  # fmt: skip
"""An entry that holds or was charged anything is left too."""


class Loop:
    """One event loop for the module: its world is made once, and each plant is rolled back."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.run = self.runner.run


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    one = Loop()
    with one.runner:
        yield one


@pytest.fixture(scope="module")
def embedded(loop: Loop, server_dsn: str, template: str) -> Iterator[EmbeddingWorld]:
    """Five articles in step (3 has a neighbour 4), one that is not published, one without a text."""
    from cli_scene import database

    async def make(dsn: str) -> tuple[EmbeddingWorld, ModelServer]:
        server = ModelServer(dimensions=DIMENSIONS)
        await server.start()
        conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        world = await EmbeddingWorld.make(dsn, conn, server)
        await world.insert(5)
        await conn.execute("insert into articles values (6, 'draft', false), (7, null, true), (8, '', true)")
        assert (await world.run()).exit_code == 0
        return world, server

    async def end(world: EmbeddingWorld, server: ModelServer) -> None:
        await world.conn.close()
        await world.embedder.close()
        await server.stop()

    with database(server_dsn, f"t_invariants_{os.getpid()}", template) as dsn:
        world, server = loop.run(make(dsn))
        yield world
        loop.run(end(world, server))


def names(loop: Loop, world: EmbeddingWorld, statement: str) -> list[str]:
    """The violations after `statement`, which is rolled back."""

    async def judged() -> list[Any]:
        assert await check(world.conn, "articles.embed") == []
        await world.conn.execute("begin")
        cursor = await world.conn.execute(statement.format(id=world.target.id).encode())
        assert cursor.rowcount == 1, "nothing was planted"
        found = await check(world.conn, "articles.embed")
        await world.conn.execute("rollback")
        return found

    return [violation.name for violation in loop.run(judged())]


@pytest.mark.parametrize("planted", PLANTED)
def test_one_broken_thing_is_named(loop: Loop, embedded: EmbeddingWorld, planted: str) -> None:
    statement, name = PLANTED[planted]
    assert names(loop, embedded, statement) == [name]


@pytest.mark.parametrize("planted", ENTRIES)
def test_an_entry_that_should_not_be_there_is_named(
    loop: Loop, embedded: EmbeddingWorld, planted: str
) -> None:
    statement, expected = ENTRIES[planted]
    assert set(names(loop, embedded, statement)) == expected


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("update articles set title = 'other' where id = 3", {"stale", "wrong stamp", "wrong layout", "change left"}),
        ("update articles set published = false where id = 3", {"orphan vector", "orphan stamp", "change left"}),
        ("delete from articles where id = 3", {"orphan vector", "orphan stamp", "change left"}),
        ("insert into articles values (9, 'new')", {"missing", "wrong layout", "change left"}),
        ("update articles set title = '' where id = 3", {"stale", "duplicate", "wrong stamp", "wrong layout", "change left"}),
    ],
)  # fmt: skip
def test_a_source_that_moved_on_is_seen(
    loop: Loop, embedded: EmbeddingWorld, changed: str, named: set[str]
) -> None:
    found = set(names(loop, embedded, changed))
    assert found
    assert found <= named
    assert "change left" in found


async def test_the_toy_derivation_and_what_a_test_made_fail(dsn: str, conn: Any) -> None:
    world = await World.make(dsn, conn, rows=5)
    assert (await world.run()).exit_code == 0
    await settled(conn, ["articles.embed"])
    for statement, name in (
        ("update instep.toy set shout = 'TITLE' where key_1 = 3", "stale"),
        ("delete from instep.toy where key_1 = 3", "missing"),
        ("insert into instep.toy values (77, 'upper-v1', 'X')", "orphan vector"),
    ):
        await conn.execute("begin")
        await conn.execute(statement)
        assert [violation.name for violation in await check(conn, "articles.embed")] == [name]
        with pytest.raises(AssertionError, match=name):
            await settled(conn, ["articles.embed"])
        await conn.execute("rollback")
    world.derivation.faults.refused = frozenset({"refuse me"})
    await conn.execute("update articles set title = 'refuse me' where id = 3")
    assert (await world.run()).counters.dead == 1
    assert {v.name for v in await check(conn, "articles.embed")} == {"attempts without failure", "dead without failure"}  # fmt: skip
    assert await check(conn, "articles.embed", failed={(3,)}) == []


def test_every_name_is_planted() -> None:
    planted = {name for _, name in PLANTED.values()} | set().union(*(names for _, names in ENTRIES.values()))
    assert planted == set(NAMES)
