"""A real PgBouncer before a test server, on a loopback port of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

PROGRAM = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
WHY_NOT = "PgBouncer is not installed (scripts/setup.sh installs the Debian package pgbouncer)"

# The smallest pool with which a client that keeps a server connection between two transactions would block others.
SETTINGS = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {pool}
max_client_conn = 500
server_idle_timeout = 5
logfile = {directory}/pgbouncer.log
pidfile = {directory}/pgbouncer.pid
"""


def through(dsn: str) -> str:
    """`dsn` by way of the PgBouncer of this test run, where there is one (conftest.py)."""
    pooler = os.environ.get("INSTEP_TEST_POOLER")
    if not pooler:
        return dsn
    info = conninfo_to_dict(pooler)
    return make_conninfo(dsn, host=info["host"], port=info["port"])


@contextmanager
def pgbouncer(dsn: str, directory: Path, pool: int = 8, mode: str = "transaction") -> Iterator[str]:
    """A DSN of the same database through PgBouncer. `pool`: server connections for each database."""
    assert PROGRAM is not None, WHY_NOT
    info = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = probe.getsockname()[1]
    directory.mkdir(exist_ok=True)
    file = directory / "pgbouncer.ini"
    user = str(info["user"])
    # auth_type any logs everybody in as the one user that the database entry names.
    settings = SETTINGS.format(
        host=info["host"],
        port=info.get("port", 5432),
        listen=listen,
        pool=pool,
        mode=mode,
        directory=directory,
    ).replace("\n[pgbouncer]", f" user={user}\n[pgbouncer]")
    file.write_text(settings)
    command = [PROGRAM, str(file)]
    identity: dict[str, object] = {}
    if os.geteuid() == 0:  # it refuses root
        owner = pwd.getpwnam("embedded_postgres")
        identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        os.chown(directory, owner.pw_uid, owner.pw_gid)
        for path in (directory, *directory.parents):
            path.chmod(path.stat().st_mode | 0o011)
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        **identity,  # type: ignore[call-overload]
    )
    through = make_conninfo(dsn, host="127.0.0.1", port=str(listen))
    try:
        _wait(process, through, directory)
        yield through
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], dsn: str, directory: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            log = directory / "pgbouncer.log"
            told = log.read_text()[-2000:] if log.exists() else ""
            assert process.poll() is None, f"pgbouncer ended: {told}"
            assert time.monotonic() < deadline, told
            time.sleep(0.05)
