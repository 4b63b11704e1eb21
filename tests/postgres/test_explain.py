"""`explain` tells each state of a row apart, and says what happens next."""

from __future__ import annotations

import pytest
from tables_scene import ARTICLES, added

from instep.catalogues.tables.tables import shown
from instep.chunks.sink import ChunkSink
from instep.engine.explain import explain

HASH = "(select instep.content_hash(instep.part(title) || instep.part(body)) from articles where id = 1)"
TARGET = "counting-chunked-1000c-v1"


@pytest.fixture
async def look(conn):
    await conn.execute(ARTICLES)
    await added(conn, where="published")
    await conn.execute("insert into articles (title) values ('one')")
    await conn.execute("truncate instep.change_articles")
    table = await shown(conn, "articles")
    sink = ChunkSink(table.embed)

    async def look(key=1):
        outputs = {TARGET: await sink.describe(conn, table.targets[0], (key,))}
        return await explain(conn, table.embed, table.targets, (key,), outputs)

    return look


def entry(conn, **columns):
    names = ", ".join(["key_1", "target", "sort_key", *columns])
    values = ", ".join(["1", f"'{TARGET}'", "now()", *columns.values()])
    return conn.execute(f"insert into instep.outbox_articles_embed ({names}) values ({values})")


def stamp(conn, hash=HASH):
    return conn.execute(
        f"insert into instep.stamp_articles_embed (key_1, target, content_hash) values (1, '{TARGET}', {hash})"
    )


async def test_never_made(look):
    seen = await look()
    assert (seen.found, seen.eligible, seen.reasons) == (True, True, ("the condition is met: published",))
    assert len(seen.content_hash) == 32
    assert not seen.in_sync
    assert seen.next == "the next sweep finds it"
    assert seen.as_dict()["outputs"] == {TARGET: {"chunks": 0, "vectors": 0, "characters": 0}}


async def test_in_step_then_stale(conn, look):
    await stamp(conn)
    seen = await look()
    assert [s.stale for s in seen.stamps] == [False]
    assert seen.next == "nothing: it is in step"
    assert seen.in_sync
    await conn.execute("update articles set body = 'more'")
    seen = await look()
    assert [s.stale for s in seen.stamps] == [True]
    assert seen.logged
    assert not seen.in_sync
    assert seen.next == "a change of this row is taken up by the next run"


@pytest.mark.parametrize(
    ("columns", "state", "next"),
    [
        ({}, "waiting", "it is worked by the next run"),
        ({"claims": "5"}, "waiting", "it is worked by the next run, alone"),
        ({"lease_until": "now() + interval '1 min'", "token": "7"}, "leased", "it is being worked now"),
        (
            {"lease_until": "now() - interval '1 min'", "token": "7"},
            "waiting",
            "it is worked by the next run",
        ),
        ({"not_before": "now() + interval '30 s'", "attempts": "1"}, "parked", "s, attempt 2 of 3"),
        (
            {"failed_at": "now()", "error_kind": "'x'", "last_error": "'y'"},
            "dead",
            "nothing until it is replayed",
        ),
        (
            {"failed_at": "now()", "discarded_at": "now()", "discard_reason": "'spam'"},
            "discarded",
            "it was discarded (spam)",
        ),
    ],
)
async def test_entry(conn, look, columns, state, next):
    await entry(conn, **columns)
    seen = await look()
    assert seen.entry.state == state
    assert next in seen.next
    assert seen.as_dict()["entry"]["state"] == state


async def test_not_eligible(conn, look):
    await conn.execute("update articles set published = false; truncate instep.change_articles")
    seen = await look()
    assert (seen.found, seen.eligible, seen.next) == (True, False, "nothing: it is not eligible")
    assert seen.reasons == ("the condition is not met: published",)
    await stamp(conn)
    assert (await look()).next == "its outputs are cleared after the next sweep"
    await entry(conn)
    assert (await look()).next == "it is cleared by the next run"


async def test_a_key_that_no_row_has(look):
    seen = await look(99)
    assert (seen.found, seen.eligible, seen.content_hash) == (False, False, None)
    assert seen.reasons == ("no row of public.articles has this key",)
    assert set(seen.as_dict()) >= {
        "eligible",
        "reasons",
        "content_hash",
        "stamps",
        "entry",
        "outputs",
        "next",
    }
