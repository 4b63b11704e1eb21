"""A worker is killed at each step of a run; another goes on; nothing is lost, doubled, stuck or counted."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

import pytest
from fault_points import CHANGED, FAILED, PARKED, RELEASED, RENEWED, UNREADABLE
from fault_scene import TABLE, Child, Scene, Stage, wait_for

POISON = "poison"
WORDS = ("bravo", "kilo", "golf bravo", "papa", "kilo golf", "")


@pytest.mark.parametrize("point", CHANGED)
def test_killed_while_it_works(scene: Scene, point: str) -> None:
    scene.write()
    scene.start("run", "articles", failpoint=point).killed()
    scene.others_go_on()
    scene.in_step()


@pytest.mark.parametrize("point", [point for point in CHANGED if point.startswith("commit.")])
def test_killed_while_it_commits_outputs(scene: Scene, point: str) -> None:
    """Where rows are to be cleared, their commit comes first; here there are none."""
    scene.write("update articles set title = 'new ' || title where id < 9")
    scene.write("insert into articles values (30, 'bravo'), (31, 'kilo')")
    scene.start("run", "articles", failpoint=point).killed()
    scene.others_go_on()
    scene.in_step()


MOST_HITS = 60


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", CHANGED)
def test_killed_each_time_that_it_comes_by(stage: Stage, point: str) -> None:
    """The second time, the third, … until a whole run passes without it."""
    for hit in range(2, MOST_HITS):
        with stage.scene() as scene:
            scene.write()
            reached = scene.start("run", "articles", failpoint=f"{point}:{hit}").reached()
            scene.others_go_on()
            scene.in_step()
        if not reached:
            break
    else:
        pytest.fail(f"no whole run passed without {point} in {MOST_HITS} hits")
    assert hit > 2, "both derivations come by"


STORM_SECONDS = 45.0
WORKERS = 3
LATEST_HIT = 12


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_a_storm(scene: Scene, seed: int) -> None:
    """Three workers that stay, each killed at a place drawn by lot and started anew, under a writer."""
    chance = random.Random(seed)
    places = [point for point in CHANGED if not point.startswith("run.")]
    scene.settings["INSTEP_POLL_SECONDS"] = "0.05"

    def start() -> Child:
        failpoint = f"{chance.choice(places)}:{chance.randint(1, LATEST_HIT)}"
        return scene.start("worker", "--follow", "articles", failpoint=failpoint)

    workers = [start() for _ in range(WORKERS)]
    deaths, until = 0, time.monotonic() + STORM_SECONDS
    while time.monotonic() < until:
        key = chance.randint(1, 40)
        scene.write(
            chance.choice(
                [
                    f"update articles set title = '{chance.choice(WORDS)}' where id = {key}",
                    f"update articles set published = not published where id = {key}",
                    f"delete from articles where id = {key}",
                    f"insert into articles values ({key}, '{chance.choice(WORDS)}') on conflict do nothing",
                    f"update articles set title = '{chance.choice(WORDS)}' where id % 5 = {key % 5}",
                ]
            )
        )
        for number, worker in enumerate(workers):
            if worker.over():
                worker.killed()
                deaths += 1
                workers[number] = start()
    for worker in workers:
        worker.end()
    assert deaths > WORKERS
    print(f"{deaths} deaths")
    scene.settings.pop("INSTEP_POLL_SECONDS")
    scene.others_go_on(code=None)
    lost = scene.sql("select count(*) from instep.outbox_articles_embed where error_kind = 'lost'")
    if lost != [(0,)]:  # one that was in hand at six deaths: said, and a person's to replay
        scene.run("dead", "replay", "articles.embed", "--yes")
        scene.run("run", "articles")
    scene.in_step()


AGAIN = [1, pytest.param(2, marks=pytest.mark.torture)]


@pytest.mark.parametrize("hit", AGAIN)
@pytest.mark.parametrize("point", RENEWED)
def test_killed_while_it_renews_a_lease(scene: Scene, point: str, hit: int) -> None:
    scene.write()
    scene.model.server.hold()
    scene.start("run", "articles", failpoint=f"{point}:{hit}", INSTEP_LEASE_SECONDS="2").killed()
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


@pytest.mark.parametrize("point", RELEASED)
def test_killed_while_it_gives_back(scene: Scene, point: str) -> None:
    scene.write()
    server = scene.model.server
    server.hold()
    child = scene.start("run", "articles.embed", failpoint=point)
    wait_for(lambda: server.active > 0)
    child.signal(signal.SIGTERM)
    child.killed()
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


@pytest.mark.parametrize("hit", AGAIN)
@pytest.mark.parametrize("point", PARKED)
def test_killed_while_it_parks_what_took_too_long(scene: Scene, point: str, hit: int) -> None:
    scene.write()
    scene.model.server.hold()
    budget = {"INSTEP_CALL_TIMEOUT_SECONDS": "0.4"}
    scene.start("run", "articles.embed", failpoint=f"{point}:{hit}", **budget).killed()
    scene.model.release()
    scene.others_go_on()
    scene.in_step()


@pytest.mark.parametrize("hit", AGAIN)
@pytest.mark.parametrize("point", FAILED)
def test_killed_while_it_records_a_failure(scene: Scene, point: str, hit: int) -> None:
    """The item fails once, whoever records it: one attempt, not two and not none."""
    scene.write()
    for key in (3, 22):  # in waves of their own
        scene.write(f"update articles set title = '{POISON}' where id = {key}")
    scene.model.server.faults.refuse = {POISON: 400}
    scene.failed = {(3,), (22,)}
    scene.start("run", "articles", failpoint=f"{point}:{hit}").killed()
    scene.others_go_on(code=None)
    scene.in_step()
    dead = scene.sql(
        "select key_1, attempts, error_kind from instep.outbox_articles_embed where failed_at is not null order by 1"
    )
    assert dead == [(3, 1, "input refused"), (22, 1, "input refused")]


def unreadable(scene: Scene) -> None:
    """A condition that fails where place is 0."""
    scene.sql(TABLE)
    scene.settings["INSTEP_SEARCH_ENGINE"] = "postgres"
    scene.run("tables", "add", "articles", "--text", "title", "--where", "10 / place > 0", "--yes")
    scene.run("run", "articles")


@pytest.fixture
def divided(stage: Stage) -> Iterator[Scene]:
    with stage.scene(unreadable) as scene:
        scene.rows = "select id, true, title, array[title]::text[] from articles"
        scene.failed = {(3,)}
        yield scene


@pytest.mark.parametrize("point", UNREADABLE)
def test_killed_while_it_buries_a_row_that_cannot_be_read(divided: Scene, point: str) -> None:
    divided.write(
        "update articles set place = 0 where id = 3; update articles set title = 'new' where id = 4"
    )
    divided.start("run", "articles", failpoint=point).killed()
    divided.others_go_on(code=1)
    divided.in_step()
    for derivation in ("embed", "search"):
        outbox = f"instep.outbox_articles_{derivation}"
        assert divided.sql(f"select key_1, failed_at is not null from {outbox}") == [(3, True)]
