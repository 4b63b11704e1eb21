"""A worker hangs past its lease, another takes its wave, the first one wakes: what it does then changes nothing.

Both are processes, stopped by SIGSTOP at a fail point. The first is woken only when each of its entries bears another
token, and while the second stands still with the wave in hand: only the first could change a row then. Rows are
compared with their xmin, so that an update to the same values would be seen too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fault_scene import Child, Scene, Stage, wait_for

WAVE = 4  # entries, all in one wave
LEASE_SECONDS = 3.0  # long enough for the first to come to its point before it renews anything
SHORT = ("claim.committed", "load.loaded", "compute.done", "commit.begun")
STALLED = (
    *SHORT,
    *(
        pytest.param(point, marks=pytest.mark.torture)
        for point in ("load.begun", "load.stamps", "compute.begun")
    ),
)


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    """Without sweeps: a process that is stopped in the middle of one holds locks for which others wait."""
    with stage.scene() as one:
        one.settings |= {"INSTEP_SWEEP_EVERY_SECONDS": "3600", "INSTEP_LEASE_SECONDS": str(LEASE_SECONDS)}
        yield one


def rows(scene: Scene) -> dict[str, list[tuple[Any, ...]]]:
    """All that a worker may write for articles.embed."""
    return {
        "entries": scene.entries(),
        **{
            table: scene.sql(f"select xmin::text, t::text from instep.{table} t order by key_1")
            for table in ("stamp_articles_embed", "chunk_articles_embed_1", "layout_articles_embed_1")
        },
    }


def tokens(scene: Scene) -> dict[int, int | None]:
    return dict(scene.sql("select key_1, token from instep.outbox_articles_embed"))


TRIES = 5
LEASE_ENDS = "not exists (select from instep.outbox_articles_embed where lease_until >= now())"
LOCKING = """
select query from pg_stat_activity
where datname = current_database() and state like 'idle in transaction%' and backend_xid is not null
"""


def hung(
    scene: Scene, point: str, told: Callable[[Child], None] | None = None, **settings: str
) -> tuple[Child, dict[int, int | None]]:
    """The first worker, stopped with the whole wave in hand, and the wave's tokens. One that happens to be stopped in
    the middle of another task's transaction (a renewal) holds locks too, not a lease alone: then once more."""
    for _ in range(TRIES):
        scene.write(f"update articles set title = 'new ' || title where id <= {WAVE}")
        child = scene.start("run", "articles.embed", "--json", failpoint=f"{point}:1:stop", **settings)
        if told is not None:
            told(child)
        child.stopped()
        held = tokens(scene)
        if not (locking := scene.sql(LOCKING)):
            assert len(held) == WAVE
            assert len(set(held.values())) == 1
            return child, held
        child.end()
        held_back = scene.model.server.held
        scene.model.release()
        scene.others_go_on()
        if held_back:
            scene.model.server.hold()
    raise AssertionError(f"in {TRIES} of {TRIES} tries it held locks: {locking}")


def taken_over(scene: Scene, first: dict[int, int | None], at: str = "compute.done") -> Child:
    """The second worker, stopped with the same entries in hand under a token of its own."""
    scene.until(LEASE_ENDS)
    second = scene.start(
        "run", "articles.embed", "--json", failpoint=f"{at}:1:stop", INSTEP_LEASE_SECONDS="60"
    )
    second.stopped()
    assert scene.sql(LOCKING) == [], "they would wait for one another, not for the lease"
    now = tokens(scene)
    assert now.keys() == first.keys()
    assert set(now.values()).isdisjoint({*first.values(), None}), "it is too early to wake the first"
    return second


def woken(scene: Scene, first: Child, *, code: int = 0) -> dict[str, Any]:
    """What the first says at its end, having changed nothing."""
    before = rows(scene)
    first.resume()
    first.ended(code)
    assert rows(scene) == before
    return first.answer if code in (0, 1) else {}


def finished(scene: Scene, second: Child) -> None:
    second.resume()
    second.ended()
    assert (second.answer["indexed"], second.answer["superseded"]) == (WAVE, 0)
    scene.run("run", "articles")
    scene.in_step()


@pytest.mark.parametrize("point", STALLED)
def test_c3_35_a_stale_finish_changes_nothing(scene: Scene, point: str) -> None:
    first, held = hung(scene, point)
    second = taken_over(scene, held)
    told = woken(scene, first)
    assert told["superseded"] == WAVE, "exactly the wave that it had in hand"
    assert (told["indexed"], told["failed"], told["dead"]) == (0, 0, 0)
    finished(scene, second)


def test_c3_37_a_stale_heartbeat_changes_nothing(scene: Scene) -> None:
    scene.model.server.hold()
    first, held = hung(scene, "renew.begun")
    second = taken_over(scene, held, at="load.loaded")
    before = rows(scene)
    beats = scene.sql("select seen_at from instep.run order by id desc limit 2")
    first.resume()
    wait_for(lambda: scene.sql("select seen_at from instep.run order by id desc limit 2") != beats)
    assert rows(scene) == before, "its heartbeat went on after the renewal"
    scene.model.release()
    first.ended_in({0, 1})  # 1: it saw that no lease could be renewed in time
    assert rows(scene) == before
    assert first.answer["superseded"] == WAVE or first.answer["outage"]
    finished(scene, second)


def test_c3_37_a_stale_release_changes_nothing(scene: Scene) -> None:
    scene.model.server.hold()

    def terminate(child: Child) -> None:
        wait_for(lambda: scene.model.server.active > 0)
        child.signal(signal.SIGTERM)

    first, held = hung(scene, "release.begun", terminate)
    second = taken_over(scene, held, at="load.loaded")
    woken(scene, first, code=143)
    scene.model.release()
    finished(scene, second)


def test_c3_37_a_stale_parking_changes_nothing(scene: Scene) -> None:
    scene.model.server.hold()
    first, held = hung(scene, "park.begun", None, INSTEP_CALL_TIMEOUT_SECONDS="0.4", INSTEP_LEASE_SECONDS="6")
    second = taken_over(scene, held, at="load.loaded")
    scene.model.release()
    assert woken(scene, first, code=1)["abandoned"] == WAVE
    finished(scene, second)


def test_c3_35_a_stale_failure_is_not_counted(scene: Scene) -> None:
    """What became of it is the second worker's to say: here it finds the text mended."""
    scene.model.server.faults.refuse = {"poison": 400}
    scene.write("update articles set title = 'poison' where id = 3")
    first = scene.start("run", "articles.embed", "--json", failpoint="fail.begun:1:stop")
    first.stopped()
    held = tokens(scene)
    scene.until(LEASE_ENDS)
    second = scene.start(
        "run", "articles.embed", "--json", failpoint="load.loaded:1:stop", INSTEP_LEASE_SECONDS="60"
    )
    second.stopped()
    assert {**held, **tokens(scene)} != held
    told = woken(scene, first)
    assert (told["superseded"], told["failed"], told["dead"]) == (1, 0, 0)
    scene.model.server.mend()
    second.resume()
    second.ended()
    assert scene.sql("select * from instep.outbox_articles_embed") == []
    scene.run("run", "articles")
    scene.in_step()


LIMIT = 10  # seconds: more than the lease and a run take


def test_a_worker_that_stands_still_in_a_transaction_holds_its_rows_until_the_server_ends_it(
    scene: Scene,
) -> None:
    """With `pooler` its sessions set no limit of their own, so that the database's, a short one, holds."""
    (name,) = scene.sql("select current_database()")[0]
    scene.sql(f"alter database {name} set idle_in_transaction_session_timeout = '{LIMIT}s'")
    scene.write(f"update articles set title = 'new ' || title where id <= {WAVE}")
    first = scene.start(
        "run", "articles.embed", "--json", failpoint="commit.fenced:1:stop", INSTEP_POOLER="true"
    )
    first.stopped()
    held = tokens(scene)
    assert len(held) == WAVE
    scene.until(LEASE_ENDS)
    scene.run("run", "articles.embed", code=None)
    assert scene.sql(LOCKING) != [], "it was to hold its locks longer than its lease"
    assert tokens(scene) == held, "passed over, not waited for"
    scene.until(f"not exists ({LOCKING})")
    scene.run("run", "articles.embed")
    assert tokens(scene) == {}
    scene.run("run", "articles")
    before = rows(scene)
    first.resume()
    first.ended_in({0, 1})  # 1: a session that was ended is an outage
    assert rows(scene) == before
    scene.in_step()


@pytest.mark.torture
@pytest.mark.parametrize("point", STALLED)
def test_the_second_has_finished_when_the_first_wakes(scene: Scene, point: str) -> None:
    first, _ = hung(scene, point)
    scene.until(LEASE_ENDS)
    scene.run("run", "articles.embed")
    assert tokens(scene) == {}
    scene.run("run", "articles")
    before = rows(scene)
    first.resume()
    first.ended()
    assert rows(scene) == before
    assert first.answer["superseded"] == WAVE
    scene.in_step()
