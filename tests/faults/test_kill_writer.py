"""The user's session dies between its write and its commit, or at it: captured is what was committed, and all of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
from fault_scene import CHANGES, Scene

WRITER = """
import sys, psycopg
with psycopg.connect(sys.argv[1], application_name="writer") as conn:
    conn.execute(sys.argv[2].encode())
    print("written", flush=True)
    sys.stdin.readline()
    conn.pgconn.send_query(b"commit")
    conn.pgconn.flush()
    print("sent", flush=True)
    sys.stdin.readline()
    while conn.pgconn.get_result():
        pass
    print("committed", flush=True)
    sys.stdin.readline()
"""
"""An application that writes and commits, step by step, as it is told."""

STATE = "select id, title, published from articles order by id"


def kill_client(writer: subprocess.Popen[str], scene: Scene) -> None:
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(10) == -signal.SIGKILL


def end_backend(writer: subprocess.Popen[str], scene: Scene) -> None:
    ended = scene.sql(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'writer'"
    )
    assert ended == [(True,)]


@pytest.mark.parametrize("end", [kill_client, end_backend])
@pytest.mark.parametrize("at", ["written", "sent", "committed"])
def test_a_writer_ends(scene: Scene, end: Callable[[subprocess.Popen[str], Scene], None], at: str) -> None:
    before = scene.sql(STATE)
    changes = "".join(part + ";" for part in CHANGES.split(";") if part.strip())
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, scene.dsn, changes],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None
        for step in ("written", "sent", "committed"):
            assert writer.stdout.readline() == f"{step}\n"
            if step == at:
                break
            writer.stdin.write("\n")
            writer.stdin.flush()
        logged = scene.sql("select count(*) from instep.change_articles")[0][0]
        if at == "written":
            assert logged == 0, "nobody sees what is not committed"
        try:
            end(writer, scene)
        finally:
            writer.kill()
    scene.until(
        "not exists (select from pg_stat_activity where datname = current_database() and application_name = 'writer')"
    )
    changed = scene.sql(STATE) != before
    if at != "sent":
        assert changed == (at == "committed")
    assert (scene.sql("select count(*) from instep.change_articles")[0][0] > 0) == changed
    scene.run("run", "articles")
    scene.in_step()


def test_a_savepoint_that_is_rolled_back_is_not_captured(scene: Scene) -> None:
    with psycopg.connect(scene.dsn) as conn:
        conn.execute("update articles set title = 'kept' where id = 1")
        conn.execute("savepoint s")
        conn.execute("update articles set title = 'undone' where id = 2")
        conn.execute("rollback to savepoint s")
    assert scene.sql("select key_1 from instep.change_articles") == [(1,)]
    scene.run("run", "articles")
    scene.in_step()
