"""`instep serve` and `instep keys` as a user types them: real processes, real signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cli_scene import TABLES, CommandLine, ModelThread, environment

from instep.settings import Settings

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture
def line(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    with ModelThread() as model:
        line = CommandLine(environment(dsn, model, tmp_path), capsys)
        line.sql(TABLES)
        yield line


def started(line: CommandLine, *more: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and its address."""
    process = line.start("serve", "--port", "0", *more)
    assert process.stderr is not None
    for told in process.stderr:
        if found := re.search(r"serving on (http://\S+)", told):
            return process, found[1]
    raise AssertionError("it never said where")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_server_answers_those_with_a_key_until_it_is_told_to_end(
    line: CommandLine, sent: signal.Signals
) -> None:
    assert line.run("tables", "add", "packages", "--text", "description", "--yes").code == 0
    assert line.run("run", "packages").code == 1  # one dead letter
    key = line.run("keys", "create", "--role", "reader", "--table", "packages", "--json").object
    process, url = started(line)
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            assert client.get("/health").json() == {"status": "ok"}
            assert client.get("/api/v1/search/packages?q=chess").status_code == 401
            client.headers["authorization"] = f"Bearer {key['key']}"
            found = client.get("/api/v1/search/packages?q=chess").json()
            assert {one["key"] for one in found["results"]} >= {"gnuchess", "stockfish"}
            with client.stream("GET", "/api/v1/events") as events:
                assert "event: status" in next(chunk for chunk in events.iter_text() if "status" in chunk)
                process.send_signal(sent)  # a stream that is open holds it up for a moment only
                _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_a_demo_needs_no_key_and_stays_on_this_machine(line: CommandLine) -> None:
    process, url = started(line, "--demo", "--debug")
    try:
        sent = {"x-request-id": "request-4711"}
        answer = httpx.get(f"{url}/api/v1/derivations?q=private", headers=sent, trust_env=False, timeout=30)
        assert answer.json() == {"derivations": []}
        assert answer.headers["x-request-id"] == "request-4711"
    finally:
        process.send_signal(signal.SIGINT)
        _, logs = process.communicate(timeout=30)
    (logged,) = [json.loads(told) for told in logs.splitlines() if "request-4711" in told]
    assert (logged["event"], logged["path"], logged["status"]) == ("request", "/api/v1/derivations", 200)
    assert "private" not in logs  # what people look for is theirs
    refused = line.run("serve", "--demo", "--host", "0.0.0.0")
    assert refused.code == 2
    assert "open to everybody" in refused.err


def test_a_port_that_is_taken_is_refused(line: CommandLine) -> None:
    process, url = started(line, "--demo")
    try:
        refused = line.run("serve", "--port", url.rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert refused.code == 2
    assert "cannot listen" in refused.err


def test_keys_are_made_listed_and_revoked(line: CommandLine) -> None:
    made = line.run("keys", "create", "--role", "operator", "--note", "cron")
    secret = made.out.strip()
    assert re.fullmatch(r"instep_[0-9a-f]{12}_[\w-]{43}", secret)
    assert "shown once" in made.err
    listed = line.run("keys", "list")
    id = secret[:19]
    assert id in listed.out
    assert "cron" in listed.out
    assert secret not in listed.out
    assert line.run("keys", "revoke", id, "--json").object["revoked_at"]
    assert line.run("keys", "revoke", id).code == 0
    assert "revoked" in line.run("keys", "list").out
    assert line.run("keys", "create", "--role", "reader", "--table", "nope").code == 2
    assert line.run("keys", "create", "--role", "king").code == 2
    assert line.run("keys", "revoke", "nope").code == 2


def test_the_settings_of_a_process_can_be_given_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTEP_BATCH_SIZE", "7")
    monkeypatch.setenv("EMBED_MAX_ATTEMPTS", "9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "instep.toml").write_text("poll_seconds = 3\nembed_model = 'x'\n")
    flags = {"embed_api_key": "s3cret", "serve_demo": "true", "allow_skip": "disk,pooler", "batch_size": "11"}
    settings = Settings.load(flags=flags)
    again = Settings.load(environ=settings.environment())
    assert again.model_dump() == settings.model_dump()
    assert (again.batch_size, again.max_attempts, again.poll_seconds) == (11, 9, 3)
    assert again.embed_api_key is not None
    assert again.embed_api_key.get_secret_value() == "s3cret"
