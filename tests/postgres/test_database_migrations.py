"""Each migration happens once and whole, whoever runs it and however it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from instep.database import migrations
from instep.database.migrations import CORE, Branch, discover, migrate
from instep.errors import Outage, Refused

MIGRATE = """
import asyncio, sys
from instep.database.migrations import migrate
sys.stdin.readline()
print(*asyncio.run(migrate(sys.argv[1])))
"""


@pytest.fixture
def empty(server_dsn: str) -> Iterator[str]:
    """A database without our schema, whose default isolation would read the account as it was before the lock."""
    name = sql.Identifier(text := f"m_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(name))
        conn.execute(
            sql.SQL("alter database {} set default_transaction_isolation = 'repeatable read'").format(name)
        )
    yield make_conninfo(server_dsn, dbname=text)
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database {} with (force)").format(name))


Make = Callable[..., Branch]


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a catalogue's branch from the texts of its migrations."""

    def make(*texts: str, label: str = "sample") -> Branch:
        package = f"package_{uuid.uuid4().hex[:8]}"
        folder = tmp_path / package / "migrations"
        folder.mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        for number, text in enumerate(texts, start=1):
            (folder / f"{number:04}_step.sql").write_text(text)
        return Branch(label, package)

    monkeypatch.syspath_prepend(str(tmp_path))
    return make


def rows(dsn: str, statement: str) -> list[tuple]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement)
        return cursor.fetchall() if cursor.description else []


def exists(dsn: str, table: str) -> bool:
    return rows(dsn, f"select to_regclass('{table}') is not null") == [(True,)]


@pytest.mark.versions
async def test_run_twice_it_happens_once(empty: str) -> None:
    core = [migration.name for migration in discover([CORE])]
    assert await migrate(empty) == core
    assert await migrate(empty) == []
    assert exists(empty, "instep.outbox") is False
    assert exists(empty, "instep.derivation")


@pytest.mark.versions
def test_two_processes_at_the_same_moment(empty: str) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, empty], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = []
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        told += process.communicate(timeout=100)[0].split()
        assert process.returncode == 0
    assert told == [migration.name for migration in discover([CORE])]


async def test_many_at_the_same_moment_and_more_than_one_step(empty: str, catalogue: Make) -> None:
    sample = catalogue(*(f"create table s{n} (n integer)" for n in range(1, 4)))
    told = await asyncio.gather(*(migrate(empty, [sample]) for _ in range(4)))
    assert sorted(name for names in told for name in names) == sorted(
        m.name for m in discover([CORE, sample])
    )


async def test_catalogues_keep_their_own_account(empty: str, catalogue: Make) -> None:
    first = catalogue("create table a1 (n integer)", label="a")
    await migrate(empty, [first])
    assert await migrate(empty) == []  # the core alone does not mind a catalogue that it does not know
    both = [catalogue("select 1", "create table a2 (n integer)", label="a"), catalogue("select 1", label="b")]
    assert await migrate(empty, both) == ["a_0002_step", "b_0001_step"]
    assert set(rows(empty, "select version_num from instep.migration where version_num like '%\\_%'")) == {
        ("a_0002",),
        ("b_0001",),
    }


async def test_a_newer_schema_is_refused(empty: str) -> None:
    await migrate(empty)
    last = discover([CORE])[-1].revision
    rows(empty, "update instep.migration set version_num = '9007'")
    with pytest.raises(Refused, match=f"schema is 9007, this release knows {last}") as refused:
        await migrate(empty)
    assert refused.value.hint == "update instep"


async def test_an_error_in_the_middle_leaves_nothing_of_that_step(empty: str, catalogue: Make) -> None:
    sample = catalogue("create table done (n integer)", "create table half (n integer); select 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(empty, [sample])
    assert (exists(empty, "done"), exists(empty, "half")) == (True, False)
    assert ("sample_0001",) in rows(empty, "select version_num from instep.migration")


async def test_cancelled_in_the_middle_it_leaves_nothing(empty: str, catalogue: Make) -> None:
    sample = catalogue("create table done (n integer)", "create table half (n integer); select pg_sleep(60)")
    task = asyncio.create_task(migrate(empty, [sample]))
    sleeping = "select count(*) from pg_stat_activity where query like '%pg_sleep(60)' and datname = current_database()"
    while rows(empty, sleeping) == [(0,)]:
        assert not task.done()
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (exists(empty, "done"), exists(empty, "half")) == (True, False)
    session = "application_name = 'instep migrate' and datname = current_database()"
    ended = f"select pg_sleep(0.02) from pg_stat_activity where {session}"
    while rows(
        empty, ended
    ):  # the server notices the end a moment later; a session left behind is a time-out here
        assert task.cancelled()


async def test_it_does_not_queue_behind_a_long_transaction_and_comes_again(
    empty: str, catalogue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_SECONDS", 0.1)
    rows(empty, "create table busy ()")
    sample = catalogue("alter table busy add column n integer")
    with psycopg.connect(empty) as other:
        other.execute("select from busy")
        monkeypatch.setattr(migrations, "LOCK_TRIES", 1)
        with pytest.raises(Outage, match="waited 1 times for a lock"):
            await migrate(empty, [sample])
        monkeypatch.setattr(migrations, "LOCK_TRIES", 50)
        task = asyncio.create_task(migrate(empty, [sample]))
        await asyncio.sleep(0.5)
        assert not task.done()
    assert await task == ["sample_0001_step"]


async def test_statements_run_as_they_are_written(empty: str, catalogue: Make) -> None:
    sample = catalogue("create view odd as select '100%' || ':name' as text, '%(x)s' as other, 1::text as n")
    await migrate(empty, [sample])
    assert rows(empty, "select * from odd") == [("100%:name", "%(x)s", "1")]


async def test_a_role_without_the_right_is_told_what_to_grant(empty: str) -> None:
    role = f"r_{uuid.uuid4().hex[:12]}"
    rows(empty, f"create role {role} login")
    try:
        with pytest.raises(Refused, match="may not migrate") as refused:
            await migrate(make_conninfo(empty, user=role))
        assert "GRANT CREATE" in str(refused.value.hint)
    finally:
        rows(empty, f"drop role {role}")


def test_a_gap_in_the_numbers_is_an_error(catalogue: Make, tmp_path: Path) -> None:
    sample = catalogue("select 1", "select 2", "select 3")
    (tmp_path / sample.package / "migrations" / "0002_step.sql").unlink()
    with pytest.raises(ValueError, match="expected the number 0002"):
        discover([sample])
