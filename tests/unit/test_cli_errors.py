"""What becomes of errors: words, a hint, one object under --json, the exit code of their kind."""

from __future__ import annotations

import io
import json
import sys

import pytest

from instep.cli import main
from instep.console.command import Answer, Commands, Ends, Example
from instep.console.session import Session
from instep.errors import Configuration, InstepError, Outage, Refused, SettingsError

CASES: list[tuple[Exception, int]] = [
    (Refused("no such table", hint="look here"), 2),
    (SettingsError("INSTEP_X is 0", hint="look here"), 2),
    (Outage("the server does not answer", hint="look here"), 1),
    (Configuration("wrong key", hint="look here"), 1),
    (InstepError("something", hint="look here"), 1),
    (Ends("terminated", exit_code=143, hint="look here"), 143),
    (KeyError("a defect"), 1),
]


def program(error: BaseException | None = None) -> Commands:
    commands = Commands("instep", help="x")

    @commands.leaf("fail", [Example("instep fail", "Fails.")])
    async def fail(session: Session) -> Answer:
        """Fail."""
        if error is not None:
            raise error
        return Answer({"fine": True, "asked": session.sure("Go on?")}, ["fine"], exit_code=3)

    @commands.leaf("other", [Example("instep other", "Another.")])
    def other(session: Session) -> Answer:
        """Not async."""
        return Answer({"rest": list(session.rest)}, ["other"], after=["what to type next"])

    return commands


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> object:
    return lambda commands: monkeypatch.setattr(main, "root", commands)


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda case: type(case).__name__)
def test_error_has_words_a_hint_and_its_exit_code(
    error: Exception, code: int, use, capsys: pytest.CaptureFixture[str]
) -> None:
    use(program(error))
    assert main.execute(["fail"]) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert str(error) in seen.err
    assert "\n  " in seen.err, "the hint stands below, set in"
    assert "Traceback" not in seen.err


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda case: type(case).__name__)
def test_error_under_json_is_one_object_on_stdout(
    error: Exception, code: int, use, capsys: pytest.CaptureFixture[str]
) -> None:
    use(program(error))
    assert main.execute(["fail", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"error"}
    assert set(told["error"]) == {"message", "hint"}
    assert str(error) in told["error"]["message"]


def test_debug_shows_where_an_error_came_from(use, capsys: pytest.CaptureFixture[str]) -> None:
    use(program(KeyError("a defect")))
    assert main.execute(["fail", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_ends_quietly(use, capsys: pytest.CaptureFixture[str]) -> None:
    use(program(KeyboardInterrupt()))
    assert main.execute(["fail"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["fail", "--bogus"], ["nope"], ["fail", "too", "many"]])
def test_usage_errors_are_refusals(arguments: list[str], use, capsys: pytest.CaptureFixture[str]) -> None:
    use(program())
    assert main.execute(arguments) == 2
    assert "Usage:" in capsys.readouterr().err
    assert main.execute([*arguments, "--json"]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error"}


def test_answer_goes_to_stdout_and_what_is_next_to_stderr(use, capsys: pytest.CaptureFixture[str]) -> None:
    use(program())
    assert main.execute(["other"]) == 0
    assert capsys.readouterr() == ("other\n", "what to type next\n")


def test_a_script_gets_one_object_and_the_exit_code(use, capsys: pytest.CaptureFixture[str]) -> None:
    use(program())
    assert main.execute(["fail", "--json", "--yes"]) == 3
    seen = capsys.readouterr()
    assert json.loads(seen.out) == {"fine": True, "asked": True}
    assert seen.err == ""


def test_question_without_a_terminal_is_refused(
    use, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that forgot --yes must neither hang nor go on."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    use(program())
    assert main.execute(["fail"]) == 2
    assert "--yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "asked"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_question_on_a_terminal_defaults_to_no(
    typed: str, asked: bool, use, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    use(program())
    assert main.execute(["fail", "--json"]) == 3
    seen = capsys.readouterr()
    assert json.loads(seen.out)["asked"] is asked
    assert "Go on? [y/N]" in seen.err


def test_yes_by_setting(use, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTEP_YES", "true")
    use(program())
    assert main.execute(["fail", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["asked"] is True
