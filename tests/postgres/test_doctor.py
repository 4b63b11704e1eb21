"""Doctor: for each check a planted fault is reported, what is printed is executed as printed, and doctor is content.

Faults of a whole server are in test_doctor_server.py, poolers in test_doctor_pooler.py.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cli_scene import POISON, TABLES, CommandLine, ModelThread, database, environment
from doctor_scene import ADD, Doctor, role

from instep.upkeep.doctor.examine import DATABASE, checks
from instep.upkeep.doctor.server import limits

pytestmark = [
    pytest.mark.xdist_group("doctor"),
    pytest.mark.session("the way to the server is what doctor is asked about"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelThread]:
    with ModelThread() as model:
        yield model


@pytest.fixture(scope="module")
def prepared(
    server_dsn: str, template: str, model: ModelThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """packages is added and in step."""
    name = f"doctor_{uuid.uuid4().hex[:12]}"
    with database(server_dsn, name, template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(TABLES)
            conn.execute("delete from packages where name = 'broken-one'")
        line = CommandLine(environment(dsn, model, tmp_path_factory.mktemp("data")))
        for arguments in (ADD, ("run", "packages")):
            process = line.start(*arguments)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, out + err
        yield name


@pytest.fixture
def doctor(
    server_dsn: str, prepared: str, model: ModelThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Doctor]:
    with database(server_dsn, f"t_{uuid.uuid4().hex[:12]}", prepared) as dsn:
        yield Doctor(CommandLine(environment(dsn, model, tmp_path), capsys))


@pytest.mark.versions
def test_all_is_well(doctor: Doctor) -> None:
    """Every check is made on a healthy installation, none skipped."""
    doctor.assert_content()
    told = doctor.ask(flags=("--json",)).object
    assert told["ok"] is True
    assert [one["name"] for one in told["checks"]] == [DATABASE, *(check.name for check in checks())]
    assert set(told["checks"][0]) == {
        "name", "state", "detail", "means", "action", "statements", "commands", "acknowledged",
    }  # fmt: skip
    assert doctor.ask(flags=("--quiet",)).out == ""


PLANTED = {
    "a trigger dropped": ("triggers", "failed", "drop trigger instep_insert on packages", "instep_insert is missing"),
    "a trigger disabled": ("triggers", "failed", "alter table packages disable trigger instep_update", "instep_update fires never"),
    "a restore that enabled all": ("triggers", "failed", "alter table packages enable trigger all", "instep_truncate fires in origin sessions alone, not always; instep_row fires in origin sessions alone, not in replica"),
    "all always": ("triggers", "failed", "alter table packages enable always trigger instep_delete", "instep_delete fires always"),
    "an older template": ("triggers", "failed", "update instep.source set template = 0", "of template 0"),
    "a function that is gone": ("triggers", "failed", "drop function instep.capture_packages_row() cascade", "instep_row is missing"),
    "a column renamed": ("capture", "failed", 'alter table packages rename description to "the Words"', "public.packages.description was renamed to the Words"),
    "a column dropped": ("capture", "failed", "alter table packages drop column section", "public.packages.section was dropped"),
    "a column retyped": ("capture", "failed", "alter table packages alter section type integer using 1", "section was text and is now integer"),
    "writes that could not be read": ("capture", "warn", "alter table packages rename description to d; update packages set d = 'new'; alter table packages rename d to description", "1 statement could not be read"),
    "left out by autovacuum": ("autovacuum", "failed", "alter table instep.outbox_packages_embed set (autovacuum_enabled = off)", "instep.outbox_packages_embed is left out"),
    "an index dropped": ("indexes", "warn", "drop index instep.outbox_packages_embed_claim", "instep.outbox_packages_embed_claim is missing on instep.outbox_packages_embed"),
    "a primary key dropped": ("indexes", "warn", "alter table instep.stamp_packages_search drop constraint stamp_packages_search_pkey", "instep.stamp_packages_search_pkey is missing"),
    "the log's key dropped": ("indexes", "warn", "alter table instep.change_packages drop constraint change_packages_pkey", "instep.change_packages_pkey is missing"),
    "an invalid index": ("indexes", "failed", "update pg_index set indisvalid = false where indexrelid = 'instep.outbox_packages_embed_parked'::regclass", "instep.outbox_packages_embed_parked is invalid"),
    "what a rebuild left": ("indexes", "failed", "create index outbox_packages_embed_dead_ccnew on instep.outbox_packages_embed (token); update pg_index set indisvalid = false where indexrelid = 'instep.outbox_packages_embed_dead_ccnew'::regclass", "instep.outbox_packages_embed_dead_ccnew is invalid"),
    "settings lost": ("storage", "warn", "alter table instep.outbox_packages_embed reset (fillfactor, autovacuum_vacuum_threshold)", "instep.outbox_packages_embed has other settings than it was made with: fillfactor, autovacuum_vacuum_threshold"),
    "read only": ("session", "failed", "alter database {database} set default_transaction_read_only = on", "default_transaction_read_only is on"),
    "a replica's role": ("session", "failed", "alter database {database} set session_replication_role = replica", "session_replication_role is replica"),
    "pgvector behind": ("pgvector", "warn", "update pg_extension set extversion = '0.8.5' where extname = 'vector'", "pgvector 0.8.5 is in use, and the server has"),
    "work that nobody does": ("backlog", "failed", "insert into packages values ('new', 'words', 'misc', 1); update instep.run set started_at = now() - interval '3 h', seen_at = now() - interval '3 h', finished_at = now() - interval '3 h'", "packages.embed: 1 entry wait, the oldest for 3 h, and nobody works them (the last run ended 3 h ago)"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "state", "plant", "says"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_reported_and_mended(
    doctor: Doctor, name: str, state: str, plant: str, says: str
) -> None:
    if "0.8.5" in plant and doctor.line.sql("select default_version <> '0.8.6' from pg_available_extensions where name = 'vector'")[0][0]:  # fmt: skip
        pytest.skip("this server's pgvector has no update from 0.8.5 that can be run twice")
    database = doctor.line.sql("select quote_ident(current_database())")[0][0]
    try:
        doctor.line.sql(plant.replace("{database}", database))
        doctor.mended(name, *says.split("; "), state=state, all_well=True)
    finally:
        with psycopg.connect(doctor.line.dsn, autocommit=True, options="-c session_replication_role=origin") as conn:  # fmt: skip
            conn.execute("set default_transaction_read_only = off")
            conn.execute(f"alter database {database} reset all")


def test_dead_rows_are_reported_and_vacuumed(doctor: Doctor) -> None:
    with psycopg.connect(doctor.line.dsn) as other:
        other.execute(
            "lock table instep.change_packages in share update exclusive mode"
        )  # keeps autovacuum off
        doctor.line.sql(
            "insert into instep.change_packages (key_1, derivations) select g::text, 1 from generate_series(1, 30000) g;"
            " delete from instep.change_packages; select pg_stat_force_next_flush()"
        )
        reported = doctor.assert_reported(
            "autovacuum", "instep.change_packages has 30,000 dead rows", state="warn"
        )
    doctor.heal("autovacuum", reported)
    doctor.assert_content()


def test_what_a_disabled_trigger_missed_is_found_by_the_command_that_is_printed(doctor: Doctor) -> None:
    doctor.line.sql("alter table packages disable trigger all")
    doctor.line.sql("insert into packages values ('late', 'a latecomer', 'misc', 1)")
    doctor.mended("triggers", "fires never")
    assert doctor.executed == ["instep run packages"]
    assert doctor.line.sql("select 1 from instep.stamp_packages_embed where key_1 = 'late'")


@pytest.mark.parametrize("table", ["outbox_packages_embed", "stamp_packages_search", "change_packages"])
def test_a_table_that_is_gone(doctor: Doctor, table: str) -> None:
    """Made again by what is printed, and what it held is found again."""
    doctor.line.sql(f"drop table instep.{table}")
    doctor.mended("indexes", f"instep.{table} is missing")
    doctor.line.sql("update packages set description = 'other words' where name = 'vim'")
    assert doctor.line.run("run", "packages").code == 0
    assert doctor.line.sql("select count(*) from instep.stamp_packages_search") == [(5,)]
    doctor.assert_content()


def test_partitions_that_come_and_go(doctor: Doctor) -> None:
    doctor.line.sql(
        "create table events (id bigint primary key, body text) partition by range (id);"
        "create table events_1 partition of events for values from (0) to (10);"
        "insert into events values (1, 'one')"
    )
    assert doctor.line.run("tables", "add", "events", "--text", "body", "--yes").code == 0
    assert doctor.line.run("run", "events").code == 0
    doctor.assert_content("partitions", "triggers")
    doctor.line.sql(
        "create table events_2 (like events including all); insert into events_2 values (11, 'eleven');"
        "alter table events attach partition events_2 for values from (10) to (20)"
    )
    doctor.mended("partitions", "public.events_2 not taken up yet")
    assert doctor.line.sql("select key_1 from instep.stamp_events_embed order by 1") == [(1,), (11,)]
    doctor.line.sql("alter table events detach partition events_2")
    doctor.mended("partitions", "1 partition detached")
    assert doctor.line.sql("select key_1 from instep.stamp_events_embed order by 1") == [(1,)]


def test_a_foreign_table_among_the_children(doctor: Doctor) -> None:
    doctor.line.sql(
        "create foreign data wrapper nothing; create server nowhere foreign data wrapper nothing;"
        "create foreign table far () inherits (packages) server nowhere"
    )
    doctor.mended("partitions", "public.far: a foreign table takes no such triggers", state="warn")


def test_row_level_security(doctor: Doctor) -> None:
    grants = (
        "grant usage on schema instep to {role}; grant pg_read_all_data to {role}; alter table packages enable row level"
        " security; alter table packages force row level security"
    )
    superuser = doctor.line.dsn
    with role(superuser, f"worker_{uuid.uuid4().hex[:8]}", grants) as dsn:
        doctor.line.environment["DATABASE_URL"], doctor.healer = dsn, superuser
        doctor.mended("row-security", "row-level security of public.packages hides rows from this role")
        assert re.fullmatch(r'alter role "worker_\w+" bypassrls;', doctor.executed[0])


def test_rights_and_what_a_role_may_not_see(doctor: Doctor) -> None:
    superuser = doctor.line.dsn
    owner = f"owner_{uuid.uuid4().hex[:8]}"
    grants = "grant usage on schema instep to {role}; grant select on all tables in schema instep to {role}"
    with role(
        superuser, owner, "grant all on schema instep to {role}; alter table packages owner to {role}"
    ) as other:
        for (table,) in doctor.line.sql("select oid::regclass::text from pg_class where relnamespace = 'instep'::regnamespace and relkind = 'r'"):  # fmt: skip
            doctor.line.sql(f"alter table {table} owner to {owner}")
        with role(superuser, f"worker_{uuid.uuid4().hex[:8]}", grants) as dsn, psycopg.connect(other):
            doctor.line.environment["DATABASE_URL"], doctor.healer = dsn, superuser
            doctor.assert_reported("rights", f"public.packages belongs to {owner}: this role may not read it", "may not create")  # fmt: skip
            doctor.heal("rights")
            doctor.assert_content("rights")

            seen = doctor.ask("old-snapshots")
            assert (seen.code, "skipped" in seen.out) == (3, True), seen
            assert "of other roles do is not shown to this role" in seen.out
            assert doctor.ask("old-snapshots", flags=("--allow-skip", "old-snapshots")).code == 0
            doctor.heal("old-snapshots")
            doctor.assert_content("old-snapshots")

            seen = doctor.ask("disk")
            assert (seen.code, "where the server keeps its data is not shown" in seen.out) == (3, True), seen
            quiet = doctor.ask("disk", flags=("--allow-skip", "disk", "--quiet"))
            assert quiet.code == 0
            assert "skipped" in quiet.out, "it stays listed"
            doctor.line.environment["INSTEP_ALLOW_SKIP"] = "disk, clock"
            assert doctor.ask("disk").code == 0
            with psycopg.connect(superuser, autocommit=True) as conn:
                conn.execute(f"revoke {owner} from {psycopg.conninfo.conninfo_to_dict(dsn)['user']}")


def test_an_open_transaction_is_named_and_ended(doctor: Doctor) -> None:
    doctor.line.environment["INSTEP_OLD_SNAPSHOT_SECONDS"] = "0.2"
    dsn = psycopg.conninfo.make_conninfo(doctor.line.dsn, application_name="metabase")
    idle = psycopg.connect(dsn)
    try:
        idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        idle.execute("select pg_sleep(0.3)")
        pid = idle.info.backend_pid
        says = (f"pid {pid} (metabase, user postgres", "is idle in transaction for", "dead rows")
        doctor.mended("old-snapshots", *says, state="warn")
        assert doctor.executed == [f"select pg_terminate_backend({pid});"]
    finally:
        idle.close()


def test_a_subscription_that_stopped(doctor: Doctor) -> None:
    doctor.line.sql(
        "create subscription feed connection 'host=127.0.0.1 port=9 dbname=x' publication p"
        " with (connect = false, slot_name = 'feed', create_slot = false);"
        "insert into pg_subscription_rel (srsubid, srrelid, srsubstate) select oid, 'packages'::regclass, 'r' from pg_subscription"
        " where subname = 'feed'"
    )
    try:
        doctor.mended(
            "replication", "public.packages is fed by the subscription feed, which is disabled", state="warn"
        )
        assert "public.packages by feed" in doctor.ask("replication").out
    finally:
        for statement in ("disable", "set (slot_name = none)"):
            doctor.line.sql(f"alter subscription feed {statement}")
        doctor.line.sql("drop subscription feed")


def test_dead_letters_that_nobody_looked_at(doctor: Doctor, model: ModelThread) -> None:
    doctor.line.sql(f"update packages set description = '{POISON}' where name = 'vim'")
    assert doctor.line.run("run", "packages.embed").code == 1
    assert doctor.line.run("run", "packages.search").code == 0
    doctor.assert_content("dead-letters")
    doctor.line.sql("update instep.outbox_packages_embed set failed_at = now() - interval '30 days'")
    doctor.assert_reported(
        "dead-letters", "packages.embed: 1 dead letter (", "the oldest for 30 days", state="warn"
    )
    refused, model.server.faults.refuse = model.server.faults.refuse, {}
    try:
        doctor.heal("dead-letters")
    finally:
        model.server.faults.refuse = refused
    doctor.assert_content()


def test_a_vector_index_that_is_gone_and_chunks_that_are(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instep.chunks.vector_index.FEWEST_ROWS", 50)
    doctor.line.sql(
        "insert into packages select 'p' || g, 'words ' || g, 'misc', 1 from generate_series(1, 60) g"
    )
    assert doctor.line.run("run", "packages").code == 0
    ((index,),) = doctor.line.sql("select indexrelid::regclass::text from pg_index where indexrelid::regclass::text like '%hnsw'")  # fmt: skip
    assert "1 valid" in doctor.ask("vector-index").out
    doctor.line.sql(f"drop index {index}")
    doctor.mended("vector-index", "packages.embed", "has no valid vector index", state="warn")
    doctor.line.sql(f"update pg_index set indisvalid = false where indexrelid = '{index}'::regclass")
    doctor.mended("indexes", f"the index {index} is invalid")
    doctor.line.sql(f"drop table {index.removesuffix('_hnsw')} cascade")
    doctor.mended("vector-index", "outputs of packages.embed (")
    assert doctor.line.sql("select count(*) from instep.packages_chunks") == [(65,)], "the view went with it"
    chunks = index.removesuffix("_hnsw")
    doctor.line.sql(f"alter table {chunks} drop constraint {chunks.removeprefix('instep.')}_pkey")
    doctor.mended("vector-index", "has no primary key any more", state="warn")
    doctor.line.sql(f"alter table {chunks} reset (autovacuum_vacuum_scale_factor)")
    doctor.mended("vector-index", "made with: autovacuum_vacuum_scale_factor", state="warn")
    assert doctor.line.sql(f"select count(*) from {index.removesuffix('_hnsw')}") == [(65,)]
    doctor.assert_content()


def test_words_in_postgresql_that_are_gone(doctor: Doctor) -> None:
    ((table,),) = doctor.line.sql("select oid::regclass::text from pg_class where relname like 'lexical_%' and relkind = 'r'")  # fmt: skip
    doctor.line.sql(f"drop index {table}_words")
    doctor.mended("search-index", "has no index over its words", state="warn")
    doctor.line.sql(f"drop table {table}")
    doctor.mended("search-index", "outputs of packages.search (", all_well=True)
    assert doctor.line.sql(f"select count(*) from {table}") == [(5,)]


def test_an_index_of_words_that_is_lost_or_of_another_time(doctor: Doctor) -> None:
    assert (
        doctor.line.run("tables", "add", "articles", "--text", "title", "--engine", "tantivy", "--yes").code
        == 0
    )
    assert doctor.line.run("run", "articles").code == 0
    doctor.assert_content("search-index")
    (index,) = (Path(doctor.line.environment["INSTEP_DATA_DIR"]) / "indexes").iterdir()
    shutil.rmtree(index)
    doctor.mended("search-index", "the index of words of articles.search in", "is not there, or damaged")
    doctor.line.sql("update instep.index_epoch set epoch = 1, intended = 2")
    doctor.mended("search-index", "is of another time than the database")
    assert doctor.line.run("search", "articles", "title", "--mode", "lexical", "--json").object["results"]


def test_a_schema_of_another_release(doctor: Doctor) -> None:
    doctor.line.sql("insert into instep.migration values ('0099')")
    doctor.assert_reported("schema", "the database's schema is 0099, this release knows")
    assert "pip install --upgrade instep" in doctor.ask("schema").out, (
        "another release; not installed by a test"
    )
    told = {one["name"]: one["state"] for one in doctor.findings()}
    assert (told["server"], told["schema"], told["triggers"]) == ("ok", "failed", "skipped")
    assert doctor.ask("triggers").code == 3
    doctor.line.sql("drop schema instep cascade")
    doctor.mended("schema", "of this release are still to be run: 0001_engine")
    doctor.assert_content()


def test_pgvector_missing_old_or_out_of_sight(server_dsn: str, doctor: Doctor) -> None:
    for number, (plant, state, says) in enumerate(
        (
            ("select 1", "failed", "has no pgvector"),
            (
                "create schema hidden; create extension vector schema hidden",
                "failed",
                "stands in the schema hidden",
            ),
        )
    ):
        name = f"t_{uuid.uuid4().hex[:12]}"
        with database(server_dsn, name, "template0") as dsn:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(plant)
            bare = Doctor(CommandLine({**doctor.line.environment, "DATABASE_URL": dsn}, doctor.line.capture))
            bare.mended("pgvector", says, state=state)
            assert bare.ask("triggers").code == 3, number
    doctor.line.sql("update pg_extension set extversion = '0.7.4' where extname = 'vector'")
    doctor.assert_reported("pgvector", "pgvector 0.7.4 has no iterative scans: 0.8 or newer is needed")
    assert "alter extension vector update;" in doctor.ask("pgvector").out
    seen = doctor.line.run("run", "packages")
    assert seen.code == 2, "what a run refuses, doctor explains"


def test_a_lease_shorter_than_the_wave(doctor: Doctor) -> None:
    doctor.line.environment["INSTEP_LEASE_SECONDS"] = "60"
    doctor.mended("wave", "INSTEP_LEASE_SECONDS is 60: 600 is used", state="warn")
    assert doctor.executed == ["export INSTEP_LEASE_SECONDS=600"]
    doctor.line.environment["INSTEP_REQUEST_TIMEOUT_SECONDS"] = "700"
    doctor.mended("wave", "one request may take 700 s, a whole wave only 600 s", state="warn")


def test_time_limits_of_a_workers_session() -> None:
    assert limits({"statement_timeout": "0", "session_replication_role": "origin"}) == []
    assert limits({"statement_timeout": "7200000"}) == []
    ((name, good, detail),) = limits({"statement_timeout": "30000"})
    assert (name, good) == ("statement_timeout", "0")
    assert detail.startswith("statement_timeout is 30 s in a worker's sessions")


def test_a_database_that_is_out(doctor: Doctor) -> None:
    doctor.line.environment["DATABASE_URL"] = "postgresql://postgres:secret@127.0.0.1:9/nothing"
    seen = doctor.ask()
    assert (seen.code, "secret" in seen.out + seen.err) == (1, False)
    first, *others = doctor.findings()
    assert (first["name"], first["state"]) == ("database", "failed")
    assert "does not answer" in first["detail"]
    assert {one["state"] for one in others} == {"skipped"}


def test_only_and_allow_skip_take_names_that_there_are(doctor: Doctor) -> None:
    for flag in ("--only", "--allow-skip"):
        seen = doctor.line.run("doctor", flag, "tigers")
        assert (seen.code, seen.out) == (2, "")
        assert "there is no check 'tigers'" in seen.err
        assert "triggers" in seen.err


def test_a_check_that_takes_too_long_is_skipped(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that would wait for the same lock are not tried one by one."""
    monkeypatch.setattr("instep.upkeep.doctor.examine.SECONDS", 0.5)
    with psycopg.connect(doctor.line.dsn) as conn:
        conn.execute("lock table instep.source in access exclusive mode")
        seen = doctor.ask()
    assert seen.code == 3, seen
    assert "it took longer than 0.5 s" in seen.out
    assert "the check rights took longer than 0.5 s" in seen.out
    told = {one["name"]: one["state"] for one in doctor.findings()}
    assert set(told.values()) == {"ok"}, "the lock is gone"


def test_doctor_changes_nothing(doctor: Doctor) -> None:
    activity = "select sum(n_tup_ins + n_tup_upd + n_tup_del)::int from pg_stat_all_tables"
    before = doctor.line.sql("select pg_stat_force_next_flush(); " + activity)
    doctor.ask()
    assert doctor.line.sql("select pg_stat_force_next_flush(); " + activity) == before


def test_the_page_explains_each_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
    told = re.findall(r"^## `([a-z-]+)`$", page, re.MULTILINE)
    assert told == [DATABASE, *(check.name for check in checks())]
    assert all(check.means in page for check in checks())
