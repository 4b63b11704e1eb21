"""Doctor and faults of a whole server, planted in one of the test's own; clocks and disks beside them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from cli_scene import CommandLine
from doctor_scene import Doctor
from psycopg import pq

from instep.clock import SystemClock
from instep.database import embedded
from instep.settings import Settings
from instep.upkeep.doctor.examine import doctor as examine

pytestmark = [
    pytest.mark.xdist_group("doctor-server"),
    pytest.mark.session("the way to the server is what doctor is asked about"),
]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A server's data directory, the server running. Not under pytest's own, through which its user may not pass."""
    above = Path(tempfile.mkdtemp(prefix="instep-d-"))
    with psycopg.connect(embedded.start(above / "data"), autocommit=True) as conn:
        conn.execute("alter system set max_prepared_transactions = 5")
    control(above / "data", "restart")
    yield above / "data"
    embedded.stop(above / "data")
    shutil.rmtree(above)


def control(directory: Path, *arguments: str) -> None:
    where = directory / "postgres"
    command = [
        str(embedded.program("pg_ctl")),
        "-D",
        str(where),
        "-w",
        "-m",
        "fast",
        "-l",
        str(where / "server.log"),
    ]
    owner = os.stat(where)
    identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd="/", **identity)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def own(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    dsn = embedded.attach(directory)
    assert dsn is not None
    environment = {"DATABASE_URL": dsn, "INSTEP_DATA_DIR": str(tmp_path), "NO_COLOR": "1"}
    line = CommandLine(environment, capsys)
    assert line.run("migrate").code == 0
    return Doctor(line)


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
def test_autovacuum_off(own: Doctor, name: str) -> None:
    own.line.sql(f"alter system set {name} = off")
    own.line.sql("select pg_reload_conf(), pg_sleep(0.2)")
    reported = own.assert_reported("autovacuum", f"{name} is off: no table is vacuumed by itself")
    own.heal("autovacuum", reported)
    assert own.executed == [f"alter system set {name} = on;", "select pg_reload_conf();"]
    own.line.sql("select pg_sleep(0.2)")
    own.assert_content("autovacuum")


def test_a_prepared_transaction_that_stands(own: Doctor) -> None:
    own.line.environment["INSTEP_OLD_SNAPSHOT_SECONDS"] = "0.1"
    with psycopg.connect(own.line.dsn, autocommit=True) as conn:
        conn.execute("create table if not exists t (a integer)")
        conn.execute("begin")
        conn.execute("insert into t values (1)")
        conn.execute("prepare transaction 'it''s forgotten'")
        conn.execute("select pg_sleep(0.2)")
    own.mended(
        "old-snapshots", "the prepared transaction it's forgotten (user postgres) stands for", state="warn"
    )
    assert own.executed == ["rollback prepared 'it''s forgotten';"]


def test_a_slot_whose_standby_is_gone(own: Doctor) -> None:
    """The standby's part is played by its protocol alone: it says how far back its queries see, and goes."""
    own.line.sql("select pg_create_physical_replication_slot('gone', true)")
    hold_back(own.line.dsn, "gone")
    own.mended("old-snapshots", "the replication slot gone (physical) is used by nobody", state="warn")
    assert own.executed == ["select pg_drop_replication_slot('gone');"]


def hold_back(dsn: str, slot: str) -> None:
    """Start streaming and send one hot standby feedback."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select txid_current()::text::bigint, pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    stream = pq.PGconn.connect(psycopg.conninfo.make_conninfo(dsn, replication="true").encode())
    try:
        started = stream.exec_(f"START_REPLICATION SLOT {slot} PHYSICAL {row[1]}".encode())
        assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
        xmin, epoch = row[0] % 2**32, row[0] // 2**32
        stream.put_copy_data(struct.pack("!cqIIII", b"h", 0, xmin, epoch, 0, 0))
        stream.flush()
        with psycopg.connect(dsn, autocommit=True) as conn:
            for _ in range(100):
                seen = conn.execute("select xmin from pg_replication_slots where xmin is not null").fetchone()
                if seen:
                    break
                conn.execute("select pg_sleep(0.05)")
            assert seen, "the server took the feedback"
    finally:
        stream.finish()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for _ in range(100):
            if not conn.execute("select from pg_replication_slots where active").fetchone():
                return
            conn.execute("select pg_sleep(0.05)")


@dataclass
class Skewed(SystemClock):
    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


@pytest.mark.parametrize(("seconds", "says"), [(600, "10 min ahead of"), (-600, "10 min behind")])
async def test_a_clock_that_differs(own: Doctor, seconds: float, says: str) -> None:
    """`timedatectl set-ntp true` is not executed: it is for the machine. What it does is done to the clock."""
    settings, clock = Settings.load(environ=own.line.environment), Skewed(seconds)
    report = await examine(settings, only=["clock"], clock=clock)
    (result,) = report.results
    assert (report.exit_code, result.finding.state, result.finding.commands) == (
        1,
        "warn",
        ("timedatectl set-ntp true",),
    )
    assert f"this machine's clock is {says} the database's" in result.finding.detail
    clock.seconds = 0
    assert (await examine(settings, only=["clock"], clock=clock)).exit_code == 0


@pytest.fixture
def small_disk(own: Doctor) -> Iterator[Path]:
    """A tablespace's directory on a tmpfs of a few megabytes, owned by the server's user."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can only be mounted as root")
    disk = Path(tempfile.mkdtemp(prefix="instep-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    space = disk / "space"
    space.mkdir()
    owner = os.stat(own.line.sql("show data_directory")[0][0])
    for path in (disk, space):
        os.chown(path, owner.st_uid, owner.st_gid)
    try:
        own.line.sql(f"create tablespace small location '{space}'")
        yield disk
        own.line.sql("drop tablespace small")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
        disk.rmdir()


def test_a_disk_that_is_nearly_full(own: Doctor, small_disk: Path) -> None:
    own.assert_content("disk")
    for size, state in ((3_900_000, "warn"), (4_150_000, "failed")):
        (small_disk / "filling").write_bytes(b"x" * size)
        reported = own.assert_reported("disk", f"the tablespace small in {small_disk}/space:", state=state)
        own.heal("disk", reported)  # it shows what takes the room
        assert own.executed[-1] == f"du -xh --max-depth=1 {small_disk}/space"
    (small_disk / "filling").unlink()
    own.assert_content("disk")


def test_a_data_directory_that_is_another_servers(own: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of that name on this machine proves nothing: the number in its control file does."""
    monkeypatch.setattr("instep.upkeep.doctor.disk._is_here", lambda directory, system: False)
    seen = own.ask("disk")
    assert (seen.code, "is not on this machine, or may not be read" in seen.out) == (3, True)
    monkeypatch.undo()
    from instep.upkeep.doctor.disk import _is_here

    (place,) = own.line.sql(
        "select current_setting('data_directory'), system_identifier from pg_control_system()"
    )
    assert _is_here(Path(place[0]), place[1])
    assert not _is_here(Path(place[0]), place[1] + 1)
    assert not _is_here(Path("/nowhere"), place[1])


def test_a_server_that_is_too_old(own: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such server is to be had here: what was seen of it is made up. Nothing that is typed mends it."""
    import dataclasses

    from instep.database.pool import Conn, Server
    from instep.database.pool import examine as truly

    async def older(conn: Conn) -> Server:
        return dataclasses.replace(await truly(conn), version=150_004)

    monkeypatch.setattr("instep.upkeep.doctor.look.examine", older)
    own.assert_reported("server", "the server is PostgreSQL 15; instep needs 16 or newer")
    monkeypatch.undo()
    own.assert_content("server")


def test_a_standby(directory: Path, own: Doctor) -> None:
    """The last of this module: the server is stopped, and comes up as a standby."""
    control(directory, "stop")
    signal = directory / "postgres" / "standby.signal"
    signal.touch()
    owner = os.stat(directory / "postgres")
    os.chown(signal, owner.st_uid, owner.st_gid)
    control(directory, "start")
    own.mended("standby", "this server is a standby: it refuses every write")
    assert own.executed == ["select pg_promote();"]
    own.assert_content("standby", "session", "schema")
