"""The embedded server: as root and as a user, shared by processes, and back after a kill with its data."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from instep.database import embedded
from instep.database.pool import Database
from instep.errors import Refused
from instep.settings import Settings

pytestmark = pytest.mark.xdist_group("embedded")  # one worker makes the module's server

START = """
import sys
from pathlib import Path
from instep.database import embedded
print(embedded.start(Path(sys.argv[1])))
print(embedded.status(Path(sys.argv[1])).pid)
"""

# The interpreter may stand where another user cannot reach it: it becomes that user when all is imported.
AS_ANOTHER_USER = """
import os, subprocess, sys
from pathlib import Path
import psutil, psycopg, encodings.idna
from instep.database import embedded
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[3]))
data = Path(sys.argv[1])
with psycopg.connect(embedded.start(data), autocommit=True) as conn:
    conn.execute("create table kept (n integer)")
assert psutil.Process(embedded.status(data).pid).uids().real == int(sys.argv[3])
embedded.stop(data)
# A container that restarts gives the old postmaster's number to another program: PostgreSQL alone would refuse.
other = subprocess.Popen(["sleep", "100"])
(data / "postgres" / "postmaster.pid").write_text(f"{other.pid}\\n{data}/postgres\\n1\\n5432\\n.\\n\\n 1 1\\nready\\n")
with psycopg.connect(embedded.start(data)) as conn:
    print(conn.execute("select count(*) from kept").fetchone()[0])
embedded.stop(data)
other.kill()
"""


def temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="instep-e-"))  # short: pytest's own are too long for a socket


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    directory = temporary()
    embedded.start(directory)
    yield directory
    embedded.stop(directory)
    shutil.rmtree(directory)


def run(code: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def value(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(statement).fetchone()
        assert row is not None
        return row[0]


def test_a_second_process_attaches_to_the_same_server(data_dir: Path) -> None:
    dsn, pid = run(START, data_dir).split()
    assert (dsn, int(pid)) == (embedded.attach(data_dir), embedded.status(data_dir).pid)


def test_attaching_waits_for_no_lock(data_dir: Path) -> None:
    with open(data_dir / "postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert embedded.start(data_dir) == embedded.attach(data_dir)


def test_nobody_else_reaches_the_socket_and_no_address_is_listened_on(data_dir: Path) -> None:
    assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700
    assert value(embedded.start(data_dir), "select current_setting('listen_addresses')") == ""


def test_what_is_set_in_the_callers_environment_does_not_matter(data_dir: Path) -> None:
    embedded.stop(data_dir)
    dsn, _ = run(
        START, data_dir, PGPORT="6000", PGHOST="nowhere", PGDATA="/nonexistent", LC_ALL="xx_XX"
    ).split()
    assert value(dsn, "select current_setting('port')") == "5432"


def test_order_is_the_same_on_every_machine(data_dir: Path) -> None:
    dsn = embedded.start(data_dir)
    assert (
        value(dsn, "select string_agg(w, '' order by w) from unnest(array['b','ä','A','a','z']) w") == "Aabzä"
    )
    assert value(dsn, "select lower('ÄÖ') || to_tsvector('simple', 'Ärger')::text") == "äö'ärger':1"


def test_a_killed_server_comes_back_with_its_data(data_dir: Path) -> None:
    with psycopg.connect(embedded.start(data_dir), autocommit=True) as conn:
        conn.execute("create table survives as select 42 as answer")
        pid = embedded.status(data_dir).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    dsn = embedded.start(data_dir)
    assert value(dsn, "select answer from survives") == 42
    assert embedded.status(data_dir).pid != pid


def test_stop_stops_once_and_start_brings_it_back(data_dir: Path) -> None:
    dsn = embedded.start(data_dir)
    assert embedded.stop(data_dir) is True
    assert embedded.stop(data_dir) is False
    assert embedded.attach(data_dir) is None
    found = embedded.status(data_dir)
    assert (found.running, found.pid, found.dsn) == (False, None, dsn)
    assert embedded.start(data_dir) == dsn


async def test_a_database_opens_on_it_with_pgvector(data_dir: Path) -> None:
    settings = Settings.load(flags={"data_dir": data_dir}, environ={})
    async with await Database.open(settings) as database, database.connection() as conn:
        assert database.embedded
        row = await (await conn.execute("select '[1,2]'::vector <-> '[1,3]'")).fetchone()
        assert row == (1.0,)


def test_two_processes_that_start_at_the_same_moment_share_one_server() -> None:
    directory = temporary()
    try:
        (directory / "postgres.making").mkdir()
        (directory / "postgres.making" / "PG_VERSION").write_text("left by one that was killed")
        both = [
            subprocess.Popen([sys.executable, "-c", START, directory], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        told = {process.communicate(timeout=100)[0] for process in both}
        assert [process.returncode for process in both] == [0, 0]
        assert len(told) == 1
    finally:
        embedded.stop(directory)
        shutil.rmtree(directory)


def test_a_path_too_long_for_a_socket_and_hard_to_quote() -> None:
    top = temporary()
    directory = top / ("long and 'quoted' ü " * 4) / ("x" * 60)
    directory.mkdir(parents=True)
    try:
        dsn = embedded.start(directory)
        assert value(dsn, "select current_database()") == embedded.DATABASE
        link = Path(psycopg.conninfo.conninfo_to_dict(dsn)["host"])
        link.unlink()  # a cleaner of /tmp took it
        assert value(embedded.start(directory), "select 1") == 1
        link.unlink()
    finally:
        embedded.stop(directory)
        shutil.rmtree(top)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "holiday.jpg").touch()
    with pytest.raises(Refused, match="neither empty nor a PostgreSQL directory"):
        embedded.start(tmp_path)
    assert [file.name for file in (tmp_path / "postgres").iterdir()] == ["holiday.jpg"]


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's: all tests above show it")
def test_as_an_ordinary_user_and_with_a_recycled_process_number() -> None:
    nobody = pwd.getpwnam("nobody")
    runs = subprocess.run([embedded.program("postgres"), "-V"], user=nobody.pw_uid, capture_output=True)
    if runs.returncode:
        pytest.skip("the server's programs stand where the user nobody cannot reach them")
    directory = temporary()
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    try:
        assert run(AS_ANOTHER_USER, directory, nobody.pw_gid, nobody.pw_uid).strip() == "0"
    finally:
        shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be served by another system user")
def test_under_root_the_server_runs_as_a_system_user(data_dir: Path) -> None:
    embedded.start(data_dir)
    pid = embedded.status(data_dir).pid
    assert psutil.Process(pid).username() == embedded.SYSTEM_USER
