"""The fail points themselves: none is forgotten, none costs anything while it is off."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_points import SCENES, UNTERMINATED

from instep import failpoints
from instep.errors import SettingsError
from instep.settings import Settings

SOURCE = Path(failpoints.__file__).parent


def reached(tree: ast.AST) -> Iterator[str]:
    """The points that a module names: `failpoints.reach("…")`, and `point="…"` where a function passes it on."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "point" and isinstance(keyword.value, ast.Constant):
                yield keyword.value.value
        if isinstance(node.func, ast.Attribute) and node.func.attr == "reach":
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                yield argument.value
            else:
                assert isinstance(argument, ast.Name), f"line {node.lineno}: not a point's name"
                assert argument.id == "point", f"line {node.lineno}: not a point's name"


def in_code() -> list[str]:
    return [
        point
        for file in SOURCE.rglob("*.py")
        if file.name != "failpoints.py"
        for point in reached(ast.parse(file.read_text("utf-8")))
    ]


def test_every_point_in_the_code_is_declared_once_and_killed_at() -> None:
    code, killed_at = in_code(), [point for points in SCENES.values() for point in points]
    assert sorted(code) == sorted(set(code)), "a point is one place"
    assert sorted(killed_at) == sorted(set(killed_at))
    assert set(code) == set(failpoints.POINTS)
    assert set(code) == set(killed_at), "each point in the code needs a scene in fault_points.py"


def test_every_scene_is_played() -> None:
    """A list in fault_points.py is the parameter of a test."""
    used = {
        name.id
        for file in Path(__file__).parent.glob("test_kill_*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "parametrize"
        and ast.literal_eval(node.args[0]) == "point"
        for name in node.args
        if isinstance(name, ast.Name)
    }
    assert used == set(SCENES)


def test_every_scene_has_its_sigterm_or_a_reason() -> None:
    tree = ast.parse(Path(__file__).with_name("test_shutdown.py").read_text("utf-8"))
    played = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(SCENES)
    assert played.isdisjoint(UNTERMINATED)
    assert played | set(UNTERMINATED) == set(SCENES)


def test_the_list_sees_a_new_point() -> None:
    assert list(reached(ast.parse("failpoints.reach('a.b'); f(point='c.d'); failpoints.reach(point)"))) == [
        "a.b",
        "c.d",
    ]
    with pytest.raises(AssertionError):
        list(reached(ast.parse("failpoints.reach(f'{name}.changed')")))


def test_off_it_costs_next_to_nothing() -> None:
    """Some 40 ns on the machine where it was written; a wave comes by 20 of them. The bound is for a busy one."""
    failpoints.arm(None)
    assert failpoints.reach is failpoints._pass
    calls = 100_000
    code = 'failpoints.reach("commit.begun")'
    seconds = min(timeit.repeat(code, globals={"failpoints": failpoints}, number=calls, repeat=7)) / calls
    assert seconds < 300e-9


@pytest.mark.parametrize(
    ("text", "armed"),
    [
        ("commit.stamped", ("commit.stamped", 1, signal.SIGKILL)),
        ("commit.stamped:2", ("commit.stamped", 2, signal.SIGKILL)),
        ("claim.let_in:3:stop", ("claim.let_in", 3, signal.SIGSTOP)),
    ],
)
def test_what_the_setting_takes(text: str, armed: tuple[str, int, int]) -> None:
    assert failpoints.parse(text) == armed
    assert Settings.load(environ={"INSTEP_FAILPOINT": text}).failpoint == text


@pytest.mark.parametrize(
    "text", ["commit.stampd", "commit.stamped:0", "commit.stamped:2:halt", "stop", ":2", "commit.stamped:"]
)
def test_what_the_setting_does_not_take(text: str) -> None:
    with pytest.raises(SettingsError, match="INSTEP_FAILPOINT"):
        Settings.load(environ={"INSTEP_FAILPOINT": text})


def test_it_dies_at_the_hit_that_was_named_and_at_no_other_point() -> None:
    code = (
        "from instep import failpoints as f; f.arm('commit.stamped:2'); f.reach('commit.begun'); f.reach('commit.begun');"
        "f.reach('commit.stamped'); print('once', flush=True); f.reach('commit.stamped'); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")
