"""What the peers' users met when a worker died or was slow (PEERS C2 and C3), with real workers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fault_scene import Scene, wait_for

from instep.clock import SYSTEM
from instep.engine import exclusive

ONE = "update articles set title = 'new ' || title where id = 3"
DEFAULT_LEASE = 900  # seconds
LEASE_SECONDS = 2.0  # of the workers that are waited for
SHORT_LEASE = {"INSTEP_LEASE_SECONDS": str(LEASE_SECONDS)}


def sent(scene: Scene, text: str) -> int:
    """How often the model was asked for it."""
    return scene.model.server.texts.count(text)


def test_c2_17_a_worker_whose_own_row_is_deleted_leaves_nothing_stuck(scene: Scene) -> None:
    scene.write()
    scene.start("run", "articles", failpoint="compute.done").killed()
    scene.sql("delete from instep.run")  # whatever tells of it is gone; the next one runs on the same machine
    scene.others_go_on()
    scene.in_step()


def test_c2_18_a_default_installation_recovers(scene: Scene) -> None:
    """No setting, no periodic task: the next run after the lease. Its fifteen minutes are set back by hand."""
    scene.write()
    defaults = {"INSTEP_LEASE_SECONDS": "", "INSTEP_CALL_TIMEOUT_SECONDS": "", "INSTEP_BATCH_SIZE": ""}
    scene.start("run", "articles", failpoint="compute.done", **defaults).killed()
    held = scene.sql(
        "select count(*) from instep.outbox_articles_embed where lease_until > now() + interval '14 min'"
    )
    assert held[0][0] > 0
    scene.settings |= defaults
    scene.run("run", "articles.embed")
    assert scene.sql("select count(*) from instep.outbox_articles_embed") == held, "not before its time"
    for outbox in scene.outboxes():
        scene.sql(
            f"update instep.{outbox} set lease_until = lease_until - interval '{DEFAULT_LEASE} s' where lease_until is not null"
        )
    scene.others_go_on()
    scene.in_step()


def test_c2_20_a_dead_worker_takes_no_share_of_a_concurrency_of_one(scene: Scene) -> None:
    scene.settings |= {"INSTEP_EMBED_CONCURRENCY": "1", "INSTEP_BATCH_SIZE": "1"}
    scene.write()
    scene.start("run", "articles", failpoint="claim.committed").killed()
    scene.others_go_on()
    scene.in_step()


def last_attempt(scene: Scene) -> list[tuple[Any, ...]]:
    return scene.sql(
        "select key_1, attempts, claims, failed_at is not null, error_kind from instep.outbox_articles_embed"
    )


def test_c2_23_a_crash_at_the_last_attempt_is_no_limbo(scene: Scene) -> None:
    """Two of three attempts are spent, and the worker dies while it records the third."""
    scene.failed = {(3,)}
    scene.model.server.faults.refuse = {"poison": 400}
    scene.write("update articles set title = 'poison' where id = 3")
    scene.start("run", "articles.embed", failpoint="claim.committed").killed()
    scene.leases_end()
    scene.sql("update instep.outbox_articles_embed set attempts = 2")
    scene.start("run", "articles.embed", failpoint="fail.recorded").killed()
    assert [row[1:] for row in last_attempt(scene)] == [(2, 2, False, None)]
    scene.others_go_on(code=1)
    assert last_attempt(scene) == [(3, 3, 0, True, "input refused")]
    scene.in_step()
    scene.model.server.mend()
    scene.run("dead", "replay", "articles.embed", "--yes")
    scene.failed = set()
    scene.run("run", "articles")
    scene.in_step()


def kills_its_worker(scene: Scene, times: int) -> None:
    for _ in range(times):
        scene.start("run", "articles.embed", failpoint="compute.done").killed()
        scene.leases_end()


def judge_lost(scene: Scene) -> None:
    """Run alone, last, in vain: a dead letter of kind lost, without an attempt; the others are done."""
    scene.others_go_on(code=1)
    assert last_attempt(scene) == [(3, 0, 6, True, "lost")]
    scene.failed = {(3,)}
    scene.in_step()
    scene.run("dead", "replay", "articles.embed", "--yes")
    scene.failed = set()
    scene.run("run", "articles")
    scene.in_step()


def test_c2_23_what_kills_its_worker_each_time_is_named_in_the_end(scene: Scene) -> None:
    """Five deaths without any result, of which four are written by hand (test_five_deaths dies them all)."""
    scene.write(ONE)
    kills_its_worker(scene, 1)
    scene.sql("update instep.outbox_articles_embed set claims = 5")
    kills_its_worker(scene, 1)
    judge_lost(scene)


@pytest.mark.torture
def test_c2_23_five_deaths_and_one_alone(scene: Scene) -> None:
    scene.write(ONE)
    kills_its_worker(scene, 6)
    scene.write("update articles set title = 'new ' || title where id > 10")
    judge_lost(scene)


async def test_c2_25_the_same_host_and_pid_are_not_the_same_holder(conn: Any) -> None:
    """A hold is known by its token; its name is for people. (A worker that is restarted in a container is pid 1 again.)"""
    first = await exclusive.acquire(conn, "articles.search", SYSTEM.token())
    with pytest.raises(exclusive.HeldElsewhere, match=exclusive.holder()):
        await exclusive.acquire(conn, "articles.search", SYSTEM.token())
    await conn.execute("update instep.exclusive set lease_until = now() - interval '1 s'")
    second = await exclusive.acquire(conn, "articles.search", SYSTEM.token())
    assert not await first.renew(conn)
    await first.release(conn)
    assert await second.renew(conn)


def test_c2_26_a_dead_claim_does_not_keep_new_work_out(scene: Scene) -> None:
    scene.write(ONE)
    scene.start("run", "articles.embed", failpoint="claim.committed").killed()
    scene.write(ONE)
    scene.start("run", "articles.embed", failpoint="absorb.committed").killed()
    assert scene.sql("select key_1, generation from instep.outbox_articles_embed") == [(3, 2)], (
        "one entry, counted up"
    )
    scene.others_go_on()
    scene.in_step()


def test_c2_22_c3_40_c3_42_what_takes_longer_than_the_lease_runs_once(scene: Scene) -> None:
    """Three leases long, with another worker looking for work all the while; then a crash frees it within one lease."""
    scene.write(ONE)
    text = scene.sql("select title from articles where id = 3")[0][0]
    server = scene.model.server
    server.hold()
    child = scene.start("run", "articles.embed", "--json", **SHORT_LEASE)
    wait_for(lambda: server.active > 0)
    until = time.monotonic() + 3 * LEASE_SECONDS
    while time.monotonic() < until:
        scene.run("run", "articles.embed")
    assert server.active == 1
    scene.model.release()
    child.ended()
    assert (child.answer["indexed"], child.answer["superseded"]) == (1, 0)
    assert sent(scene, text) == 1
    scene.write(ONE)
    server.hold()
    dies = scene.start("run", "articles.embed", failpoint="renew.committed:2", **SHORT_LEASE)
    dies.killed()
    scene.model.release()
    died = time.monotonic()
    scene.until("not exists (select from instep.outbox_articles_embed where lease_until >= now())")
    assert time.monotonic() - died < LEASE_SECONDS + 5
    scene.run("run", "articles")
    scene.in_step()


def test_c2_33_a_worker_whose_heartbeat_fails_stops(scene: Scene) -> None:
    """Its connection for heartbeats is ended by the server: it does not go on as if its leases were renewed."""
    scene.write(ONE)
    scene.model.server.hold()
    child = scene.start("run", "articles.embed", "--json")
    wait_for(lambda: scene.model.server.active > 0)
    beating = (
        "datname = current_database() and application_name = 'instep' and query like '%update instep.run%'"
    )
    scene.until(f"exists (select from pg_stat_activity where {beating} and state = 'idle')")
    assert scene.sql(f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where {beating}") == [
        (True,)
    ]
    child.ended(1)
    assert child.answer["outage"]
    assert scene.sql("select token, lease_until, claims, attempts from instep.outbox_articles_embed") == [
        (None, None, 0, 0)
    ]
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


def test_c2_33_a_worker_whose_heartbeat_hangs_stops(scene: Scene) -> None:
    """Another session has its row locked: no lease is renewed for as long as one lasts, so it gives its wave back."""
    import psycopg

    scene.settings["INSTEP_SWEEP_EVERY_SECONDS"] = "3600"
    scene.write(ONE)
    scene.model.server.hold()
    child = scene.start("run", "articles.embed", "--json", **SHORT_LEASE)
    wait_for(lambda: scene.model.server.active > 0)
    with psycopg.connect(scene.dsn) as locking:
        locking.execute("select from instep.run order by id desc limit 1 for update")
        child.ended(1)
    assert "no lease could be renewed" in child.answer["outage"]
    assert scene.sql("select token, lease_until, claims, attempts from instep.outbox_articles_embed") == [
        (None, None, 0, 0)
    ]
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


def test_c3_45_changes_while_a_row_is_worked_make_one_further_run(scene: Scene) -> None:
    scene.settings["INSTEP_SWEEP_EVERY_SECONDS"] = "3600"
    scene.write("update articles set title = 'first' where id = 3")
    child = scene.start(
        "run", "articles.embed", "--json", failpoint="compute.begun:1:stop", INSTEP_LEASE_SECONDS="60"
    )
    child.stopped()
    for title in ("second", "third", "last"):
        scene.write(f"update articles set title = '{title}' where id = 3")
    scene.run("run", "articles.embed")  # another worker absorbs them, and leaves the row to its holder
    assert scene.sql("select key_1, token is not null from instep.outbox_articles_embed") == [(3, True)]
    child.resume()
    child.ended()
    assert [sent(scene, title) for title in ("first", "second", "third", "last")] == [1, 0, 0, 1]
    scene.run("run", "articles")
    scene.in_step()
    assert sent(scene, "last") == 1
