"""Doctor in tests: a fault is planted, doctor is asked through the command line, and what it printed is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from cli_scene import CommandLine, Seen
from psycopg import sql

ADD = ("tables", "add", "packages", "--text", "name,description", "--filters", "section", "--yes")
Reported = tuple[Seen, list[dict[str, Any]]]
ABROAD = ("timedatectl", "pip", "du")  # commands for people: they change the machine, or only look at it


@dataclass
class Doctor:
    """`line` is whom doctor runs as; `healer`, a superuser's DSN, is where printed statements are executed."""

    line: CommandLine
    healer: str = ""
    executed: list[str] = field(default_factory=list)

    def ask(self, *names: str, flags: tuple[str, ...] = ()) -> Seen:
        only = [word for name in names for word in ("--only", name)]
        return self.line.run("doctor", *only, *flags)

    def findings(self, *names: str) -> list[dict[str, Any]]:
        return self.ask(*names, flags=("--json",)).object["checks"]

    def assert_content(self, *names: str) -> None:
        seen = self.ask(*names, flags=("--json",))
        assert seen.code == 0, seen
        assert {finding["state"] for finding in seen.object["checks"]} == {"ok"}

    def assert_reported(self, name: str, *says: str, state: str = "failed") -> Reported:
        """The exit code is 1, and each of `says` stands in what people see, in that state."""
        seen, findings = self.ask(name), self.findings(name)
        assert seen.code == 1, seen
        found = [one for one in findings if one["state"] == state]
        assert found, findings
        for words in says:
            assert any(words in one["detail"] for one in found), (words, found)
            assert words in seen.out
        assert all(one["means"] in seen.out for one in found)
        return seen, findings

    def heal(self, name: str, reported: Reported | None = None) -> None:
        """Execute what is printed, as it is printed: each line of the output that ends with something to be typed."""
        seen, findings = reported or (self.ask(name), self.findings(name))
        printed = seen.out.splitlines()
        wanted = [text for one in findings for text in (*one["statements"], *one["commands"])]
        assert wanted, seen
        for text in dict.fromkeys(wanted):
            line = next(line for line in printed if re.search(rf"(^|: ) *{re.escape(text)}$", line))
            self.execute(line[-len(text) :])

    def execute(self, text: str) -> None:
        self.executed.append(text)
        if text.endswith(";"):
            with psycopg.connect(self.healer or self.line.dsn, autocommit=True) as conn:
                conn.execute(text.encode())
            return
        words = shlex.split(text)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.line.environment[name] = value
        elif words[0] not in ABROAD:
            assert words[0] == "instep", text
            seen = self.line.run(*words[1:])
            assert seen.code == 0, seen

    def mended(self, name: str, *says: str, state: str = "failed", all_well: bool = False) -> None:
        """The whole way of one check: reported, what is printed is executed, content (with `all_well`, every check)."""
        self.heal(name, self.assert_reported(name, *says, state=state))
        self.assert_content(*(() if all_well else (name,)))


@contextmanager
def role(superuser: str, name: str, grants: str = "") -> Iterator[str]:
    """The DSN of a role that is no superuser, on the same database; it goes with all that it was given."""
    quoted = sql.Identifier(name).as_string(None)
    with psycopg.connect(superuser, autocommit=True) as conn:
        conn.execute(f"create role {quoted} login")
        try:
            if grants:
                conn.execute(grants.format(role=quoted))
            yield psycopg.conninfo.make_conninfo(superuser, user=name)
        finally:
            conn.execute(
                f"reassign owned by {quoted} to current_user; drop owned by {quoted}; drop role {quoted}"
            )
