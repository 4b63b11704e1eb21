"""A worker is killed while it builds the vector index, and while it writes an index outside PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from fault_points import SEARCH_INDEX, SEARCH_INDEX_ANEW, VECTOR_INDEX
from fault_scene import TABLE, TITLE, Scene, Stage, add_table
from index_invariants import check_index

ROWS = 1000  # from here on a vector index is built

INDEXES = "select indisvalid from pg_index where indrelid = 'instep.chunk_articles_embed_1'::regclass and not indisprimary"


def many(scene: Scene) -> None:
    """Enough vectors for an index, which is gone."""
    scene.settings |= {"INSTEP_BATCH_SIZE": "500", "INSTEP_LEASE_SECONDS": "60"}
    scene.sql(TABLE)
    scene.sql(f"insert into articles select g, {TITLE.format('g')} from generate_series(101, {ROWS + 100}) g")
    add_table(scene)
    scene.run("run", "articles.embed")
    scene.in_step("articles.embed")
    assert scene.sql(INDEXES) == [(True,)]
    scene.sql("drop index instep.chunk_articles_embed_1_hnsw")


@pytest.mark.parametrize("point", VECTOR_INDEX)
def test_killed_while_it_builds_the_vector_index(stage: Stage, point: str) -> None:
    with stage.scene(many) as scene:
        scene.settings["INSTEP_BATCH_SIZE"] = "500"
        scene.write()
        scene.start("run", "articles.embed", failpoint=point).killed()
        scene.others_go_on("articles.embed")
        scene.run("run", "articles.search")
        scene.in_step()
        assert scene.sql(INDEXES) == [(True,)]


def outside(scene: Scene) -> None:
    """Search is kept by tantivy."""
    scene.sql(TABLE)
    add_table(scene, "tantivy")
    scene.run("run", "articles")
    scene.in_step()
    assert index_is_right(scene)


def index_is_right(scene: Scene) -> bool:
    (directory,) = [
        path for path in (scene.directory / "indexes").iterdir() if path.name.startswith("articles_search")
    ]
    wanted = dict(scene.sql("select id, coalesce(title, '') from articles where published"))
    found = check_index(directory, wanted)
    assert not found, found
    return True


@pytest.fixture
def searched(stage: Stage) -> Iterator[Scene]:
    with stage.scene(outside) as scene:
        yield scene


def hold_ends(scene: Scene) -> None:
    """The dead worker's hold on the index, which is a minute long, is over."""
    scene.sql("update instep.exclusive set lease_until = now() - interval '1 second'")


@pytest.mark.parametrize("point", SEARCH_INDEX)
def test_killed_while_it_writes_the_search_index(searched: Scene, point: str) -> None:
    searched.write()
    searched.start("run", "articles", failpoint=point).killed()
    hold_ends(searched)
    searched.others_go_on()
    searched.in_step()
    assert index_is_right(searched)


@pytest.mark.parametrize("point", SEARCH_INDEX_ANEW)
def test_killed_while_it_makes_the_search_index_anew(searched: Scene, point: str) -> None:
    """The database was restored: it does not know this index."""
    searched.sql("update instep.index_epoch set epoch = 1, intended = 1")
    searched.write()
    searched.start("run", "articles", failpoint=point).killed()
    hold_ends(searched)
    searched.others_go_on()
    searched.in_step()
    assert index_is_right(searched)


def test_the_judge_of_the_index_sees_what_is_wrong(searched: Scene) -> None:
    searched.write("update articles set title = 'other' where id = 1; delete from articles where id = 2")
    searched.write(f"insert into articles select 30, {TITLE.format('30')}")
    with pytest.raises(AssertionError) as told:
        index_is_right(searched)
    assert [word for word in ("stale", "orphan: 2", "missing: 30") if word not in str(told.value)] == []
    (directory,) = (searched.directory / "indexes").iterdir()
    shutil.rmtree(directory)
    directory.mkdir()
    with pytest.raises(ValueError, match=r"meta\.json"):
        index_is_right(searched)
