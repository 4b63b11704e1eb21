"""The embedded server behind the command line, and the whole demo on it, with the real model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instep.cli.demo import DIRECTORY
from instep.cli.reference import leaves
from instep.database import embedded

MODELS = Path(tempfile.gettempdir()) / f"instep-tests-{os.getuid()}" / "models"
ROWS = 200
DEMO = f"instep demo --rows {ROWS}"
STOP = "instep db stop"

pytestmark = pytest.mark.xdist_group("cli-embedded")


def instep(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command as a process: no DATABASE_URL, and no apt to be found, so that the demo takes its sample."""
    return subprocess.run(
        [sys.executable, "-m", "instep", *arguments],
        env={"PATH": str(Path(sys.executable).parent), "INSTEP_DATA_DIR": str(directory), "INSTEP_MODELS_DIR": str(MODELS), **more},
        cwd=directory.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )  # fmt: skip


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not under pytest's own directories, through which the server's user may not pass."""
    above = Path(tempfile.mkdtemp(prefix="instep-c-"))
    yield above / "data"
    embedded.stop(above / "data")
    embedded.stop(above / DIRECTORY)
    shutil.rmtree(above)


def test_every_example_that_needs_the_embedded_server_runs_here() -> None:
    """The demo's first example is the same on more rows."""
    needing = {
        example.line for _, leaf in leaves() for example in leaf.examples if example.needs == "embedded"
    }
    assert needing == {"instep demo", DEMO, STOP}


def test_the_embedded_server_from_init_to_stop(directory: Path) -> None:
    first = instep(directory, "init")
    assert first.returncode == 0, first.stderr
    assert "starting the embedded PostgreSQL in" in first.stderr, "it says so"
    assert "(embedded in" in first.stdout
    again = instep(directory, "init", "--json")
    assert json.loads(again.stdout)["migrated"] == []
    assert again.stderr == ""
    dsn = instep(directory, "db", "url").stdout
    assert dsn.startswith("postgresql://")
    assert dsn.count("\n") == 1
    asked = instep(directory, "db", "psql", "-At", "-c", "select 6 * 7")
    assert (asked.returncode, asked.stdout) == (0, "42\n")
    assert instep(directory, "db", "psql", "-c", "nonsense").returncode == 1, "psql's own exit code"
    assert json.loads(instep(directory, "db", "status", "--json").stdout)["running"] is True
    assert json.loads(instep(directory, *STOP.split()[1:], "--json").stdout) == {"stopped": True}
    assert json.loads(instep(directory, "db", "stop", "--json").stdout) == {"stopped": False}
    seen = instep(directory, "db", "status")
    assert "does not run" in seen.stdout


@pytest.mark.timeout(300)
def test_demo_holds_what_it_claims_twice_and_leaves_other_databases_alone(directory: Path) -> None:
    """200 rows of the sample and the real MiniLM. The second time only the rows that it changed are worked."""
    elsewhere = "postgresql://nobody@127.0.0.1:9/never"
    first = instep(directory, *DEMO.split()[1:], DATABASE_URL=elsewhere)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "All is as it says" in first.stdout
    assert "$ instep tables add packages --text" in first.stdout
    assert "✗" not in first.stdout
    second = instep(directory, "demo", "--json", DEMO_ROWS=str(ROWS))
    told = json.loads(second.stdout)
    assert (second.returncode, told["ok"]) == (0, True)
    assert len(told["claims"]) >= 15
    assert "packages is added already" in second.stderr
    made = [line for line in second.stderr.splitlines() if line.startswith("packages.embed    indexed")]
    assert int(made[0].split()[2]) == 9, "the rows that it changes, not all of them"
