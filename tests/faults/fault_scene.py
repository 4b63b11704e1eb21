"""Real workers, real signals: a database in step, a model server, a worker that is killed, others that go on.

child = scene.start("run", "articles", failpoint="commit.stamped")
child.killed()          # its wait status says SIGKILL, or the test fails
scene.others_go_on()    # after the lease, one run of another process
scene.in_step()         # the invariants, by plain SQL
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from cli_scene import ModelThread, database
from invariants import ARTICLES, check

DIMENSIONS = 8
LEASE_SECONDS = 60
PATIENCE = 30.0  # seconds, for what takes one on an idle machine

TITLE = "'item' || translate({}::text, '0123456789', 'bdfgkmnpqz')"
"""Words of consonants, which no stemmer changes."""

TABLE = f"""
create table articles (
    id bigint primary key, title text, published boolean not null default true, place integer not null default 1
);
insert into articles select g, {TITLE.format("g")}, g < 19 from generate_series(1, 20) g;
"""

CHANGES = f"""
insert into articles select g, {TITLE.format("g")} from generate_series(21, 26) g;
update articles set title = 'new ' || title where id between 1 and 4;
delete from articles where id between 5 and 6;
update articles set published = false where id between 7 and 8;
update articles set published = true where id > 18;
update articles set title = null where id = 10;
"""
"""Made, made anew, cleared in each way there is; one statement each, as an application writes."""


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"never, in {seconds} s"
        time.sleep(0.01)


class Nursery:
    """Where workers come from: each an interpreter of its own (`whole`), or by zygote.py, which takes a tenth of the
    time. Their wait statuses are this process's to read in both cases."""

    def __init__(self, whole: bool) -> None:
        self._zygote: subprocess.Popen[str] | None = None
        if not whole and sys.platform == "linux":
            assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            self._zygote = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("zygote.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def start(self, arguments: Sequence[str], environment: dict[str, str], out: Path, err: Path) -> int:
        """The pid of `instep ARGUMENTS`."""
        if self._zygote is None:
            with out.open("wb") as told, err.open("wb") as wrong:
                process = subprocess.Popen(
                    [sys.executable, "-m", "instep", *arguments],
                    env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=wrong,
                )  # fmt: skip
            process.returncode = 0  # its wait status is read by `Child`
            return process.pid
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        asked = {"arguments": arguments, "environment": environment, "out": str(out), "err": str(err)}
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    def end(self) -> None:
        if self._zygote is not None:
            self._zygote.communicate()


PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Child:
    """One process that is started to be hurt. Its wait status is read here alone."""

    def __init__(
        self, nursery: Nursery, arguments: Sequence[str], environment: dict[str, str], directory: Path
    ) -> None:
        name = f"child-{uuid.uuid4().hex[:8]}"
        self.out, self.err = directory / f"{name}.out", directory / f"{name}.err"
        self.pid = nursery.start(arguments, environment, self.out, self.err)
        self._ended = False

    @property
    def said(self) -> str:
        return self.out.read_text("utf-8", "replace") + self.err.read_text("utf-8", "replace")

    @property
    def answer(self) -> dict[str, Any]:
        """The object that --json printed."""
        answer: dict[str, Any] = json.loads(self.out.read_text("utf-8"))
        return answer

    def signal(self, number: int) -> None:
        assert not self._ended
        os.kill(self.pid, number)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def killed(self, seconds: float = PATIENCE) -> None:
        status = self._wait(seconds)
        assert os.WIFSIGNALED(status), f"it was to be killed, and ended by itself: {status}\n{self.said}"
        assert os.WTERMSIG(status) == signal.SIGKILL, self.said

    def stopped(self, seconds: float = PATIENCE) -> None:
        status = self._wait(seconds, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it was to stop, and ended: {status}\n{self.said}"
        assert os.WSTOPSIG(status) == signal.SIGSTOP, self.said

    def ended(self, code: int = 0, seconds: float = PATIENCE) -> None:
        status = self._wait(seconds)
        assert os.WIFEXITED(status), f"signal {os.WTERMSIG(status)}\n{self.said}"
        assert os.WEXITSTATUS(status) == code, f"exit code {os.WEXITSTATUS(status)}, not {code}\n{self.said}"

    def ended_in(self, codes: set[int], seconds: float = PATIENCE) -> None:
        status = self._wait(seconds)
        assert os.WIFEXITED(status), f"signal {os.WTERMSIG(status)}\n{self.said}"
        assert os.WEXITSTATUS(status) in codes, f"exit code {os.WEXITSTATUS(status)}\n{self.said}"

    def reached(self, seconds: float = PATIENCE) -> bool:
        """True: killed at its point. False: it ended well without coming there."""
        status = self._wait(seconds)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, self.said
            return True
        assert os.WEXITSTATUS(status) == 0, self.said
        return False

    def over(self) -> bool:
        """Whether it has ended, without reading its status."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> None:
        """At a test's end, whatever became of it."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(PATIENCE)

    def _wait(self, seconds: float, options: int = 0) -> int:
        until = time.monotonic() + seconds
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG | options)
            if found:
                if not os.WIFSTOPPED(status):
                    self._ended = True
                return status
            assert time.monotonic() < until, f"nothing happened in {seconds} s\n{self.said}"
            time.sleep(0.01)


class Peer:
    """Another worker: peer.py."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Another process."""
        if hasattr(self, "_process"):
            self.end()
        self.asked = False  # and has not answered yet
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("peer.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, environment: dict[str, str], *arguments: str, code: int | None = 0) -> str:
        """What it printed on stdout; `code`: the exit code that is wanted, None for any."""
        self.ask(environment, *arguments)
        return self.answer(code)

    def ask(self, environment: dict[str, str], *arguments: str) -> None:
        assert self._process.stdin is not None
        asked = {"environment": environment, "arguments": [*arguments]}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        self.asked = True

    def answer(self, code: int | None = 0) -> str:
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.asked = False
        assert code is None or told["code"] == code, f"exit code {told['code']}, not {code}: {told}"
        return str(told["out"])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Scene:
    """One test's own database, and what runs on it."""

    dsn: str
    directory: Path
    model: ModelThread
    peer: Peer
    nursery: Nursery
    settings: dict[str, str] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    rows: str = ARTICLES
    failed: set[tuple[Any, ...]] = field(default_factory=set)  # keys whose item the test makes fail

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.dsn,
            "INSTEP_DATA_DIR": str(self.directory),
            "INSTEP_EMBED_PROVIDER": "tei",
            "INSTEP_EMBED_URL": self.model.server.url,
            "INSTEP_BATCH_SIZE": "4",
            "INSTEP_LEASE_SECONDS": str(LEASE_SECONDS),
            "INSTEP_CALL_TIMEOUT_SECONDS": "0",  # else a lease could not be so short
            "NO_COLOR": "1",
            **self.settings,
        }

    def start(self, *arguments: str, failpoint: str = "", dsn: str = "", **settings: str) -> Child:
        """`instep ARGUMENTS` as a process of its own."""
        environment = {**os.environ, **self.environment, **settings}
        if failpoint:
            environment["INSTEP_FAILPOINT"] = failpoint
        if dsn:
            environment["DATABASE_URL"] = dsn
        child = Child(self.nursery, arguments, environment, self.directory)
        self.children.append(child)
        return child

    def run(self, *arguments: str, code: int | None = 0) -> str:
        """The same in the other worker's process."""
        return self.peer.run(self.environment, *arguments, code=code)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(statement.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def write(self, statements: str = CHANGES) -> None:
        """As an application writes: one transaction for each statement."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for statement in filter(str.strip, statements.split(";")):
                conn.execute(statement.encode())

    def entries(self, derivation: str = "articles_embed") -> list[tuple[Any, ...]]:
        """Whole rows, with xmin: equal lists mean that nobody has written."""
        return self.sql(
            f"select xmin::text, o::text from instep.outbox_{derivation} o order by key_1, target"
        )

    def until(self, condition: str, seconds: float = PATIENCE) -> None:
        until = time.monotonic() + seconds
        while not self.sql(f"select {condition}")[0][0]:
            assert time.monotonic() < until, f"never: {condition}"
            time.sleep(0.02)

    def leases_end(self) -> None:
        """The server is rid of the dead worker's sessions, and time passes by hand: no lease and no back-off holds
        anything any more. (test_hang.py and test_leases.py wait for it.)"""
        self.until(
            "not exists (select from pg_stat_activity where datname = current_database() and application_name = 'instep')"
        )
        for outbox in self.outboxes():
            self.sql(
                f"update instep.{outbox} set lease_until = now() - interval '1 s' where lease_until is not null;"
                f"update instep.{outbox} set not_before = now() where not_before > now() and failed_at is null"
            )

    def outboxes(self) -> list[str]:
        return [
            name
            for (name,) in self.sql(
                "select tablename from pg_tables where schemaname = 'instep' and tablename like 'outbox_%'"
            )
        ]

    def others_go_on(self, *names: str, code: int | None = 0) -> None:
        """One run of another process, as soon as the leases are over. Whatever is left then is stuck."""
        self.leases_end()
        self.run("run", *(names or ("articles",)), code=code)

    def in_step(self, *derivations: str) -> None:
        names = derivations or ("articles.embed", "articles.search")

        async def judge() -> list[str]:
            async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
                return [
                    str(violation)
                    for name in names
                    for violation in await check(conn, name, self.rows, failed=self.failed)
                ]

        found = asyncio.run(judge())
        assert not found, "\n".join(found)


def add_table(scene: Scene, engine: str = "postgres") -> None:
    scene.settings["INSTEP_SEARCH_ENGINE"] = engine
    scene.run("tables", "add", "articles", "--text", "title", "--where", "published", "--yes")


Prepare = Callable[[Scene], None]


def in_step(scene: Scene) -> None:
    """The table is added, filled and judged."""
    scene.sql(TABLE)
    add_table(scene)
    scene.run("run", "articles")
    scene.in_step()


@dataclass
class Stage:
    """What the tests of one module share: prepared databases, copied for each test."""

    server_dsn: str
    template: str
    model: ModelThread
    peer: Peer
    nursery: Nursery
    prepared: dict[str, tuple[str, Path]] = field(default_factory=dict)

    @contextmanager
    def scene(self, prepare: Prepare = in_step) -> Iterator[Scene]:
        """A copy of what `prepare` makes, database and data directory; prepared once."""
        name = prepare.__name__
        if name not in self.prepared:
            self.prepared[name] = self._prepared(prepare)
        original, directory = self.prepared[name]
        own = Path(tempfile.mkdtemp(prefix="instep-fault-"))
        shutil.copytree(directory, own, dirs_exist_ok=True)
        self.model.server.mend()
        self.model.server.forget()
        try:
            with database(self.server_dsn, f"f_{uuid.uuid4().hex[:12]}", original) as dsn:
                scene = Scene(dsn, own, self.model, self.peer, self.nursery)
                try:
                    yield scene
                finally:
                    if self.peer.asked:  # the test gave up while the other worker was at it
                        self.peer.renew()
                    self.model.release()
                    for child in scene.children:
                        child.end()
        finally:
            shutil.rmtree(own)

    def _prepared(self, prepare: Prepare) -> tuple[str, Path]:
        name = f"fp_{uuid.uuid4().hex[:12]}"
        directory = Path(tempfile.mkdtemp(prefix="instep-fault-"))
        with psycopg.connect(self.server_dsn, autocommit=True) as conn:
            conn.execute(f"create database {name} template {self.template}".encode())
        prepare(
            Scene(
                psycopg.conninfo.make_conninfo(self.server_dsn, dbname=name),
                directory,
                self.model,
                self.peer,
                self.nursery,
            )
        )
        return name, directory

    def end(self) -> None:
        self.peer.end()
        self.nursery.end()
        with psycopg.connect(self.server_dsn, autocommit=True) as conn:
            for name, directory in self.prepared.values():
                conn.execute(f"drop database if exists {name} with (force)".encode())
                shutil.rmtree(directory)
