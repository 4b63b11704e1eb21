"""A walk through the command line: each leaf's examples run, and each `--json` is one object and nothing else."""

from __future__ import annotations

import shlex
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cli_scene import TABLES, CommandLine, ModelThread, catalogue, database, environment

from instep.cli.reference import leaves
from instep.console.command import Example

LEAVES = dict(leaves())
EXAMPLES = [(name, example) for name, leaf in LEAVES.items() for example in leaf.examples]
HERE = [(n, e) for n, e in EXAMPLES if not e.stays and not e.needs]
STAYING = [e for _, e in EXAMPLES if e.stays and not e.needs]
ELSEWHERE = {
    "instep demo",
    "instep db stop",
    "instep serve",
}  # shown in test_cli_embedded.py, test_server_serve.py
ADD = [
    "tables",
    "add",
    "packages",
    "--text",
    "name,description",
    "--filters",
    "section,installed_size",
    "--where",
]

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelThread]:
    with ModelThread() as model:
        yield model


@pytest.fixture(scope="module")
def prepared(
    server_dsn: str, template: str, model: ModelThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The documentation's database: packages is added and was run, with one dead letter; articles is not added."""
    name = f"prepared_{uuid.uuid4().hex[:12]}"
    with database(server_dsn, name, template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(TABLES)
        line = CommandLine(environment(dsn, model, tmp_path_factory.mktemp("data")))
        for arguments, code in (
            ([*ADD, "not obsolete", "--newest", "updated_at", "--yes"], 0),
            (["run", "packages"], 1),
        ):
            process = line.start(*arguments)
            out, err = process.communicate(timeout=60)
            assert process.returncode == code, f"{arguments}: {out}{err}"
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(
                "insert into instep.api_key (id, hash, role) values ('instep_0123456789ab', 'x', 'reader')"
            )
        yield name


@pytest.fixture
def line(
    server_dsn: str, prepared: str, model: ModelThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """Commands on a copy of the documentation's database."""
    with database(server_dsn, f"t_{uuid.uuid4().hex[:12]}", prepared) as dsn:
        yield CommandLine(environment(dsn, model, tmp_path), capsys)


@pytest.mark.parametrize(("name", "example"), HERE, ids=lambda value: getattr(value, "line", ""))
def test_example_does_what_it_says(name: str, example: Example, line: CommandLine) -> None:
    if example.line == "instep tables add articles --text title,body":  # it asks, and nobody is there
        assert line.line(example.line).code == 2
        return
    seen = line.line(example.line)
    assert seen.code == example.exit_code, seen
    silent = example.line == "instep db psql" or "--quiet" in example.line
    assert seen.out.strip() or silent, "an answer says something"
    assert "Traceback" not in seen.err
    if "--json" in example.line:
        assert seen.object


@pytest.mark.parametrize(
    "name", [name for name in LEAVES if name not in ELSEWHERE and name != "instep db psql"]
)
def test_json_is_one_object_and_nothing_else(name: str, line: CommandLine) -> None:
    """Of the first example that ends: its answer as people see it is not on stdout, whatever else happens."""
    example = next(
        (e for e in LEAVES[name].examples if not e.stays and "$(" not in e.line), LEAVES[name].examples[0]
    )
    words = [word for word in shlex.split(example.line.partition(" > ")[0])[1:] if word != "--json"]
    seen = line.run(*words, "--json", "--yes")
    assert seen.code == example.exit_code
    assert seen.object


@pytest.mark.parametrize("example", STAYING, ids=lambda example: example.line)
def test_example_that_stays_works_changes_until_it_is_interrupted(
    example: Example, line: CommandLine
) -> None:
    process = line.start(*shlex.split(example.line)[1:])
    try:
        line.sql("update packages set description = 'Plays zanzibar chess' where name = 'gnuchess'")
        for told in process.stderr:  # type: ignore[union-attr]
            if "packages.embed  wave of" in told:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    assert "finishing the wave in hand" in err
    assert "packages.embed    indexed 1" in out


REFUSALS = {
    "no such table": "tables add nope --text body --yes",
    "no such column": "tables add articles --text nope --yes",
    "no key": "tables add keyless --text comment --yes",
    "a view": "tables add recent --text body --yes",
    "a condition that does not parse": 'tables add articles --text body --where "published and" --yes',
    "a volatile condition": 'tables add articles --text body --where "random() < 0.5" --yes',
    "a filter on no column": "tables add articles --text body --filters nope --yes",
    "no terminal to ask on": "tables add articles --text body",
    "added otherwise": "tables add packages --text name --yes",
    "a model of other dimensions": "tables add articles --text body --dimensions 7 --yes",
    "nothing to remove": "tables remove nope --yes",
    "removal without being asked": "tables remove packages",
    "nothing to show": "tables show nope",
    "nothing to run": "run nope",
    "no such derivation": "run packages.nope",
    "nothing to search": "search nope words",
    "an empty query": 'search packages " "',
    "a filter that does not parse": 'search packages words --where "section ="',
    "a filter on a column that is none": 'search packages words --where "nope = 1"',
    "a page beyond the last": "search packages words --offset 20000",
    "an unknown mode": "search packages words --mode sideways",
    "nothing to explain": "explain nope key",
    "nothing to plan": "plan nope",
    "no such letter": "dead show packages.embed gnuchess",
    "a replay of all without being asked": "dead replay",
    "a key without its table": "dead discard packages",
    "stopping a server that is not ours": "db stop",
    "an unknown shell": "completion tcsh",
    "an unknown option": "status --bogus",
    "an unknown command": "statsu",
}


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS)
def test_refusal_exits_2_says_why_and_changes_nothing(refused: str, line: CommandLine) -> None:
    before = catalogue(line)
    seen = line.run(*shlex.split(refused))
    assert (seen.code, seen.out if "add articles" not in refused else "") == (2, "")
    assert seen.err.strip()
    assert "Traceback" not in seen.err
    assert catalogue(line) == before


def test_refusal_is_one_object_under_json(line: CommandLine) -> None:
    seen = line.run("run", "nope", "--json")
    assert seen.code == 2
    assert set(seen.object) == {"error"}
    assert seen.object["error"]["message"] in seen.err


def test_a_setting_that_cannot_be_used_is_refused(line: CommandLine) -> None:
    line.environment["INSTEP_MAX_ATTEMPTS"] = "none"
    seen = line.run("run")
    assert seen.code == 2
    assert "INSTEP_MAX_ATTEMPTS" in seen.err


def test_a_setting_below_its_floor_is_raised_and_said(line: CommandLine) -> None:
    line.environment["INSTEP_BATCH_SIZE"] = "0"
    seen = line.run("run", "packages", "--json")
    assert seen.code == 0
    assert seen.object["name"] == "packages"
    assert "INSTEP_BATCH_SIZE is 0: 1 is used" in seen.err
