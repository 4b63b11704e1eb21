"""Doctor behind a real PgBouncer: found, its mode told by what it does, and led past it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from cli_scene import CommandLine
from doctor_scene import Doctor

pytestmark = [
    pytest.mark.xdist_group("doctor-server"),
    pytest.mark.session("the way to the server is what doctor is asked about"),
]
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(dsn: str, mode: str, size: int = 20) -> Iterator[str]:
    """The DSN of a PgBouncer before the test's database."""
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer here (Debian: apt-get install pgbouncer)")
    info = psycopg.conninfo.conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory = Path(tempfile.mkdtemp(prefix="instep-b-"))
    (directory / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={info['host']} port={info['port']} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {size}\n"
        f"ignore_startup_parameters = extra_float_digits\nlogfile = {directory}/log\n"
    )
    identity = {}
    if os.geteuid() == 0:  # PgBouncer refuses root
        owner = os.stat(str(info["host"]))
        identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        for path in (directory, directory / "pgbouncer.ini"):
            os.chown(path, owner.st_uid, owner.st_gid)
    process = subprocess.Popen(
        [PGBOUNCER, str(directory / "pgbouncer.ini")], stderr=subprocess.DEVNULL, **identity
    )  # type: ignore[call-overload]
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, (directory / "log").read_text()
                time.sleep(0.05)
        yield psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=port)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


@pytest.fixture
def doctor(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    environment = {"DATABASE_URL": dsn, "INSTEP_DATA_DIR": str(tmp_path), "NO_COLOR": "1"}
    return Doctor(CommandLine(environment, capsys))


def test_transaction_mode_is_found_and_led_past(doctor: Doctor) -> None:
    with pgbouncer(doctor.line.dsn, "transaction") as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        doctor.mended(
            "pooler",
            "DATABASE_URL leads through a pooler in transaction mode",
            "a pooler in transaction mode, and INSTEP_DIRECT_DATABASE_URL is not set",
        )
        assert [command.partition("=")[0] for command in doctor.executed] == [
            "export INSTEP_POOLER", "export INSTEP_DIRECT_DATABASE_URL",
        ]  # fmt: skip
        assert (
            "a pooler in transaction mode; INSTEP_DIRECT_DATABASE_URL leads past it"
            in doctor.ask("pooler").out
        )
        doctor.assert_content()


def test_doctor_leaves_no_setting_behind_in_a_poolers_sessions(doctor: Doctor) -> None:
    with pgbouncer(doctor.line.dsn, "transaction", size=1) as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        settings = "select name, setting from pg_settings where source = 'session' order by 1"
        before = doctor.line.sql(settings)
        assert doctor.ask("pooler").code == 1
        assert doctor.line.sql(settings) == before


def test_session_mode_is_well_and_one_that_gives_no_second_connection_is_not_known(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    dsn = doctor.line.dsn
    with pgbouncer(dsn, "session") as pooled:
        doctor.line.environment["DATABASE_URL"] = pooled
        doctor.assert_content("pooler")
        assert "a pooler in session mode" in doctor.ask("pooler").out
    monkeypatch.setattr("instep.upkeep.doctor.pooler.SECONDS", 1.0)
    with pgbouncer(dsn, "session", size=1) as pooled:
        doctor.line.environment |= {"DATABASE_URL": pooled, "INSTEP_DIRECT_DATABASE_URL": dsn}
        seen = doctor.ask("pooler")
        assert seen.code == 3, seen
        assert "there is a pooler, and it gave no second connection to tell its mode by" in seen.out


def test_a_direct_address_that_is_none(doctor: Doctor) -> None:
    dsn = doctor.line.dsn
    with pgbouncer(dsn, "transaction") as pooled:
        doctor.line.environment |= {"INSTEP_DIRECT_DATABASE_URL": pooled}
        doctor.mended("pooler", "INSTEP_DIRECT_DATABASE_URL leads through a pooler")


def test_a_pooler_that_is_not_there(doctor: Doctor) -> None:
    doctor.line.environment["INSTEP_POOLER"] = "true"
    doctor.mended("pooler", "INSTEP_POOLER is on, and no pooler is on the way", state="warn")
