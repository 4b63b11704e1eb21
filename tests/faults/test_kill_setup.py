"""A process is killed while it installs, removes, migrates, mends or replays; the next one finishes what it began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from cli_scene import database
from fault_points import ADDED, MENDED, MIGRATED, REMOVED, REPLAYED
from fault_scene import TABLE, Scene, Stage, add_table

ADD = ("tables", "add", "articles", "--text", "title", "--where", "published", "--yes")
REMOVE = ("tables", "remove", "articles", "--yes")


def bare(scene: Scene) -> None:
    """A user's table, not yet added."""
    scene.sql(TABLE)


@pytest.fixture
def unadded(stage: Stage) -> Iterator[Scene]:
    with stage.scene(bare) as scene:
        scene.settings["INSTEP_SEARCH_ENGINE"] = "postgres"
        yield scene


@pytest.mark.parametrize("point", ADDED)
def test_killed_while_it_installs(unadded: Scene, point: str) -> None:
    unadded.start(*ADD, failpoint=point).killed()
    unadded.write()  # the user's own statements never fail for it
    add_table(unadded)
    unadded.others_go_on()
    unadded.in_step()


@pytest.mark.parametrize("point", REMOVED)
def test_killed_while_it_removes(scene: Scene, point: str) -> None:
    scene.start(*REMOVE, failpoint=point).killed()
    scene.write()
    scene.run(*REMOVE)
    assert traces(scene) == {}
    scene.write("update articles set title = 'again' where id = 1")


def traces(scene: Scene) -> dict[str, list[tuple[Any, ...]]]:
    """What is left of the table in the schema instep, in triggers and in functions."""
    queries = {
        "relations": "select relname from pg_class where relnamespace = 'instep'::regnamespace and relname like '%articles%'",
        "triggers": "select tgname from pg_trigger where tgrelid = 'articles'::regclass",
        "functions": "select proname from pg_proc where pronamespace = 'instep'::regnamespace and proname like '%articles%'",
        **{
            table: f"select * from instep.{table}"
            for table in ("source", "derivation", "target", "run", "exclusive", "marker")
        },
    }
    return {name: found for name, query in queries.items() if (found := scene.sql(query))}


@pytest.mark.parametrize(
    "hit", [1, pytest.param(2, marks=pytest.mark.torture), pytest.param(3, marks=pytest.mark.torture)]
)
@pytest.mark.parametrize("point", MIGRATED)
def test_killed_while_it_migrates(scene: Scene, server_dsn: str, point: str, hit: int) -> None:
    wanted = schema(scene.dsn)
    with database(server_dsn, scene.sql("select current_database() || '_m'")[0][0], "template0") as empty:
        scene.start("status", failpoint=f"{point}:{hit}", dsn=empty).killed()
        assert schema(empty) != wanted or (point, hit) == ("migrate.committed", 3)
        scene.peer.run({**scene.environment, "DATABASE_URL": empty}, "status")
        assert schema(empty) == wanted


def schema(dsn: str) -> list[tuple[Any, ...]]:
    """The core's own tables and functions, and the account of migrations."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        columns = conn.execute(
            "select table_name, column_name, data_type, column_default, is_nullable from information_schema.columns"
            " where table_schema = 'instep' and table_name !~ 'articles' order by 1, 2"
        ).fetchall()
        functions = conn.execute(
            "select proname, prosrc from pg_proc where pronamespace = to_regnamespace('instep') and proname !~ 'articles' order by 1"
        ).fetchall()
        made = conn.execute("select to_regclass('instep.migration') is not null").fetchone() == (True,)
        account = (
            conn.execute("select version_num from instep.migration order by 1").fetchall() if made else []
        )
    return [*columns, *functions, *account]


@pytest.mark.parametrize("point", MENDED)
def test_killed_while_it_mends_a_trigger(scene: Scene, point: str) -> None:
    scene.write("alter table articles disable trigger user")
    scene.write()  # nobody saw it
    scene.start("run", "articles", failpoint=point).killed()
    scene.others_go_on()
    scene.in_step()
    assert scene.sql(
        "select distinct tgenabled from pg_trigger where tgrelid = 'articles'::regclass and tgname = 'instep_insert'"
    ) == [("O",)]


@pytest.fixture
def buried(scene: Scene) -> Scene:
    """Three dead letters of texts that the model refused."""
    scene.model.server.faults.refuse = {"poison": 400}
    scene.write("update articles set title = 'poison' || title where id < 4")
    scene.failed = {(1,), (2,), (3,)}
    scene.run("run", "articles", code=1)
    scene.in_step()
    assert dead(scene) == [(1, 1, False), (2, 1, False), (3, 1, False)]
    return scene


def dead(scene: Scene) -> list[tuple[Any, ...]]:
    return scene.sql(
        "select key_1, attempts, discarded_at is not null from instep.outbox_articles_embed where failed_at is not null order by 1"
    )


@pytest.mark.parametrize("point", REPLAYED)
def test_killed_while_it_replays_dead_letters(buried: Scene, point: str) -> None:
    buried.model.server.mend()
    buried.start("dead", "replay", "articles.embed", "--yes", failpoint=point).killed()
    assert dead(buried) == (
        [] if point == "dead.committed" else [(1, 1, False), (2, 1, False), (3, 1, False)]
    )
    buried.run("dead", "replay", "articles.embed", "--yes", code=None)
    buried.others_go_on()
    buried.failed = set()
    buried.in_step()


@pytest.mark.parametrize("point", REPLAYED)
def test_killed_while_it_discards_dead_letters(buried: Scene, point: str) -> None:
    discard = ("dead", "discard", "articles.embed", "--kind", "input refused", "--why", "a test", "--yes")
    buried.start(*discard, failpoint=point).killed()
    assert {gone for _, _, gone in dead(buried)} == {point == "dead.committed"}
    buried.run(*discard, code=None)
    buried.others_go_on()
    buried.in_step()
    assert dead(buried) == [(1, 1, True), (2, 1, True), (3, 1, True)]
