"""What scripts rely on: the shapes of `--json`, the streams, and the exit codes of runs (INTERFACES)."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cli_scene import POISON, TABLES, CommandLine, ModelThread, database, environment

pytestmark = pytest.mark.xdist_group("cli")

COUNTERS = {
    "name", "enqueued", "indexed", "removed", "reused", "superseded", "truncated", "abandoned", "failed", "dead", "outage",
    "seconds",
}  # fmt: skip


@pytest.fixture
def model() -> Iterator[ModelThread]:
    with ModelThread() as model:
        yield model


@pytest.fixture
def line(
    server_dsn: str, template: str, model: ModelThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """Commands on a database where packages is added and nothing was run."""
    with database(server_dsn, f"t_{uuid.uuid4().hex[:12]}", template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(TABLES)
            conn.execute("delete from packages where name = 'broken-one'")
        line = CommandLine(environment(dsn, model, tmp_path), capsys)
        seen = line.run(
            "tables", "add", "packages", "--text", "name,description", "--filters", "section", "--yes"
        )
        assert seen.code == 0, seen
        yield line


def test_run_gives_the_counters_of_the_first_derivation_and_search_beside_them(line: CommandLine) -> None:
    first = line.run("run", "packages", "--json")
    assert first.code == 0
    told = first.object
    assert set(told) >= COUNTERS | {"search"}
    assert set(told["search"]) >= COUNTERS
    assert (told["name"], told["indexed"], told["search"]["indexed"]) == ("packages", 5, 5)
    assert told["outage"] is None
    again = line.run("run", "packages", "--json").object
    assert (again["enqueued"], again["indexed"]) == (0, 0)


def test_run_of_one_derivation_and_of_everything(line: CommandLine) -> None:
    one = line.run("run", "packages.search", "--json").object
    assert (one["name"], one["indexed"]) == ("packages.search", 5)
    assert "search" not in one
    every = line.run("run", "--json").object
    assert [run["name"] for run in every["runs"]] == ["packages"]


def test_status_search_explain_dead_and_url(line: CommandLine) -> None:
    line.run("run", "packages")
    status = line.run("status", "--json").object
    assert status["jobs"] == []
    assert [one["name"] for one in status["derivations"]] == ["packages.embed", "packages.search"]
    assert set(status["derivations"][0]) >= {
        "name", "state", "waiting", "leased", "dead", "oldest_wait_seconds", "coverage",
    }  # fmt: skip
    assert {one["state"] for one in status["derivations"]} == {"in step"}
    found = line.run("search", "packages", "chess", "--facets", "--json").object
    assert set(found) >= {"results", "facets", "semantic", "legs"}
    assert set(found["results"][0]) >= {"key", "score", "text", "highlights"}
    explained = line.run("explain", "packages.embed", "gnuchess", "--json").object
    assert explained["key"] == "gnuchess"
    line.run("tables", "add", "articles", "--text", "title", "--yes")
    assert (
        line.run("explain", "articles.embed", "1", "--json").object["key"] == 1
    )  # as search and dead letters say it
    assert set(explained) >= {"eligible", "reasons", "content_hash", "stamps", "entry", "outputs", "next"}
    assert line.run("dead", "list", "--json").object == {"kinds": []}
    assert line.run("db", "url").out == line.dsn + "\n"


def test_dead_letters_from_list_to_discard(line: CommandLine, model: ModelThread) -> None:
    line.run("run", "packages")
    line.sql(f"update packages set description = '{POISON} and 100% odd, ünïcode' where name = 'vim'")
    seen = line.run("run", "packages")
    assert seen.code == 1
    assert "newly dead, see: instep dead list packages.embed" in seen.err
    (kind,) = line.run("dead", "list", "--json").object["kinds"]
    assert (kind["count"], kind["example"]["key"]) == (1, "vim")
    assert kind["kind"] in line.run("dead", "list").out
    shown = line.run("dead", "show", "packages.embed", "vim")
    assert shown.code == 0
    assert "400" in shown.out
    model.server.faults.refuse = {}
    assert line.run("dead", "replay", "packages.embed", "vim", "--json").object == {"replayed": 1}
    assert line.run("run", "packages").code == 0
    model.server.faults.refuse = {POISON: 400}
    line.sql(f"update packages set description = '{POISON} again' where name = 'vim'")
    assert line.run("run", "packages").code == 1
    gone = line.run(
        "dead", "discard", "packages", "--kind", kind["kind"], "--why", "scan", "--yes", "--json"
    ).object
    assert gone == {"discarded": 1}
    assert line.run("dead", "list", "--json").object == {"kinds": []}
    assert line.run("run", "packages").code == 0


def test_outage_exits_1_with_words_and_nothing_counted(line: CommandLine, model: ModelThread) -> None:
    line.environment["INSTEP_EMBED_URL"] = "http://127.0.0.1:9"  # nothing listens there
    seen = line.run("run", "packages", "--json")
    assert seen.code == 1
    told = seen.object
    assert told["outage"]
    assert (told["failed"], told["dead"], told["pending"]) == (0, 0, 5)
    assert told["search"]["indexed"] == 5, "the index of words needs no model"


def test_wrong_key_exits_1_and_names_the_setting(line: CommandLine, model: ModelThread) -> None:
    model.server.faults.status = 401
    seen = line.run("run", "packages", "--json")
    assert seen.code == 1
    assert "INSTEP_EMBED_API_KEY" in seen.object["configuration"]


@pytest.mark.parametrize("provider", ["minilm", "openai"])
def test_another_provider_than_the_tables_exits_1_and_counts_nothing(
    line: CommandLine, provider: str, model: ModelThread
) -> None:
    """Forgotten settings must not dead-letter a table: neither by its model's name, nor by its missing tokenizer."""
    if provider == "openai":  # added with MiniLM's tokens, run by a server
        line.sql(
            "update instep.target set spec = spec || '{\"splitter\": \"256t\"}' where derivation = 'packages.embed'"
        )
    line.environment["INSTEP_EMBED_PROVIDER"] = provider
    for _ in range(4):  # more than an entry has attempts
        seen = line.run("run", "packages", "--json")
        assert seen.code == 1, seen
        assert "INSTEP_EMBED_PROVIDER" in seen.object["configuration"]
        assert (seen.object["failed"], seen.object["dead"], seen.object["pending"]) == (0, 0, 5)
    assert line.sql("select distinct attempts, failed_at, token from instep.outbox_packages_embed") == [
        (0, None, None)
    ]


def test_sigterm_gives_back_and_exits_143(line: CommandLine, model: ModelThread) -> None:
    model.server.forget()
    model.server.faults.slow = 30.0
    process = line.start("run", "packages.embed", "--json")
    deadline = time.monotonic() + 30
    while model.server.requests == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143, out + err
    assert line.sql("select count(*), count(token) from instep.outbox_packages_embed") == [(5, 0)]


@pytest.mark.parametrize(
    "arguments", [("pause", "--reason", " "), ("pause", "nosuch", "--reason", "x"), ("resume", "nosuch")]
)
def test_a_pause_that_makes_no_sense_exits_2(line: CommandLine, arguments: tuple[str, ...]) -> None:
    refused = line.run(*arguments)
    assert refused.code == 2, refused
    assert "blank" in refused.err or "nosuch" in refused.err


def test_pause_and_resume(line: CommandLine) -> None:
    """OPERATIONS: no new wave while it lasts; status shows it; exit code 0, because somebody wanted it so."""
    paused = line.run("pause", "packages.embed", "--reason", "new model", "--until", "2h", "--json").object
    assert (paused["name"], paused["reason"]) == ("packages.embed", "new model")
    assert paused["until"] > paused["since"]
    run = line.run("run", "packages", "--json")
    assert run.code == 0
    assert run.object["paused"].startswith("new model (until ")
    assert (run.object["indexed"], run.object["pending"]) == (0, 5)
    assert (run.object["search"]["paused"], run.object["search"]["indexed"]) == (None, 5)
    shown = line.run("run", "packages")
    assert "packages.embed is paused: new model" in shown.err
    status = line.run("status", "--json").object
    assert [one["name"] for one in status["paused"]] == ["packages.embed"]
    states = {one["name"]: (one["state"], one["paused"] is None) for one in status["derivations"]}
    assert states == {"packages.embed": ("paused", False), "packages.search": ("in step", True)}
    seen = line.run("status")
    assert "paused: packages.embed: new model" in seen.out
    assert "To go on: instep resume packages.embed" in seen.err
    assert line.run("pause", "--reason", "all of it", "--json").object["name"] is None
    refused = line.run("resume", "packages.embed")
    assert refused.code == 2
    assert "everything is paused as a whole: all of it" in refused.err
    lifted = line.run("resume", "--json").object["resumed"]
    assert [one["name"] for one in lifted] == [None, "packages.embed"]
    assert line.run("resume", "--json").object == {"resumed": []}
    assert line.run("run", "packages", "--json").object["indexed"] == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pause", "--reason", "x", "--until", "tomorrow"], "--until 'tomorrow' is no time"),
        (["pause", "--reason", "x", "--until", "2020-01-01 10:00"], "has passed"),
        (["pause", "nothing", "--reason", "x"], "There is no source 'nothing'"),
        (["pause"], "--reason"),
    ],
)
def test_a_pause_that_cannot_be_is_refused(line: CommandLine, arguments: list[str], told: str) -> None:
    seen = line.run(*arguments)
    assert seen.code == 2
    assert told in seen.err
    assert line.run("status", "--json").object["paused"] == []


def test_logs_and_progress_stay_off_stdout(line: CommandLine) -> None:
    process = line.start("run", "packages", "--json", "--debug")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.lstrip().startswith("{")
    assert "packages.embed  wave of 5" in err


def test_removal_leaves_the_table_and_nothing_else(line: CommandLine) -> None:
    line.run("run", "packages")
    line.sql("insert into instep.exclusive values ('packages.search', 'a worker that died', 1, now())")
    seen = line.run("tables", "remove", "packages", "--yes")
    assert seen.code == 0
    for table, column in (("run", "derivation"), ("exclusive", "name"), ("target", "derivation")):
        assert line.sql(f"select count(*) from instep.{table} where {column} like 'packages%'") == [(0,)]
    assert not list((Path(line.environment["INSTEP_DATA_DIR"]) / "indexes").glob("packages*"))
    assert line.sql("select count(*) from packages") == [(5,)]
    assert line.sql("select count(*) from pg_trigger where tgrelid = 'packages'::regclass") == [(0,)]
    assert line.sql(
        "select count(*) from pg_class where relname like '%packages_%' and relnamespace = 'instep'::regnamespace"
    ) == [(0,)]
    assert line.run("tables", "list", "--json").object == {"tables": []}


def test_names_of_tables_complete(line: CommandLine) -> None:
    line.environment |= {
        "_INSTEP_COMPLETE": "complete_bash",
        "COMP_WORDS": "instep run pack",
        "COMP_CWORD": "2",
    }
    process = line.start()
    out, err = process.communicate(timeout=30)
    assert out.split() == ["packages", "packages.embed", "packages.search"], err


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("alter table packages rename column description to words", "description was renamed to words"),
        ("drop table packages", "the table public.packages does not exist any more"),
        ("alter table packages drop column section", "public.packages.section was dropped"),
    ],
)
def test_a_table_that_is_not_as_it_was_is_said_by_every_command(
    line: CommandLine, damage: str, what: str
) -> None:
    """TABLES.md: reported by run and status; and it hides no other table from status."""
    assert line.run("run", "packages").code == 0
    assert line.run("tables", "add", "articles", "--text", "title", "--yes").code == 0
    line.sql(damage)
    status = {one["name"]: one for one in line.run("status", "--json").object["derivations"]}
    assert status["packages.embed"]["state"] == "misconfigured"
    assert what in status["packages.embed"]["problem"]
    assert status["articles.embed"]["problem"] is None
    assert what in line.run("status").out.replace("\n", " ")
    run = line.run("run", "packages", "--json")
    assert run.code == 1
    assert what in run.object["configuration"]
    for command in (
        ("search", "packages", "chess"), ("explain", "packages.embed", "vim"), ("plan", "packages"),
    ):  # fmt: skip
        seen = line.run(*command)
        assert seen.code in (1, 2), command
        assert "Traceback" not in seen.err
        assert "Undefined" not in seen.err, command
    assert line.run("tables", "remove", "packages", "--yes").code == 0


def test_a_row_on_which_the_condition_fails_hides_nothing_from_status(line: CommandLine) -> None:
    added = line.run(
        "tables", "add", "articles", "--text", "title", "--where", "1 / (length(section) - 1) > 0", "--yes"
    )
    assert added.code == 0, added
    line.sql("update articles set section = 'x' where id = 1")
    run = line.run("run", "articles", "--json")
    assert (run.code, run.object["dead"]) == (1, 1)
    status = line.run("status", "--json")
    assert status.code == 0
    embed = {one["name"]: one for one in status.object["derivations"]}["articles.embed"]
    assert (embed["dead"], embed["coverage"]) == (1, None)


def test_a_worker_that_stays_outlasts_the_removal_of_a_table(line: CommandLine) -> None:
    """And one that cannot be worked any more; a run of everything works the rest too."""
    for table in ("articles", "shop.orders"):
        text = "title" if table == "articles" else "comment"
        assert line.run("tables", "add", table, "--text", text, "--yes").code == 0
    worker = line.start("worker", "--follow")
    try:
        _until(line, "select count(*) from instep.stamp_articles_embed", 5)
        assert line.run("tables", "remove", "packages", "--yes").code == 0
        line.sql("alter table shop.orders drop column comment")
        time.sleep(3)
        line.sql("insert into articles (title) values ('later')")
        _until(line, "select count(*) from instep.stamp_articles_embed", 6)
        assert worker.poll() is None
    finally:
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=30)
    assert "ExceptionGroup" not in err
    seen = line.run("run", "--json")
    assert seen.code == 1
    runs = {run["name"]: run for run in seen.object["runs"]}
    assert runs["articles"]["configuration"] is None
    assert "comment was dropped" in runs["orders"]["configuration"]


def _until(line: CommandLine, count: str, wanted: int) -> None:
    for _ in range(300):
        if line.sql(count) == [(wanted,)]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{count}: {line.sql(count)}, not {wanted}")
