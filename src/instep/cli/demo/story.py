"""What the demo shows, in order. Each claim is checked, and the demo fails where one does not hold."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from instep.cli.demo import records
from instep.cli.demo.pace import rows_for
from instep.cli.demo.records import WANTED, Package
from instep.cli.demo.table import Sent, Table
from instep.clock import SYSTEM
from instep.console.command import Answer, Ends, Surroundings
from instep.console.figures import count, duration, plural
from instep.console.progress import loading
from instep.console.terminal import Terminal
from instep.database import embedded
from instep.settings import Settings

CHANGED = 3  # rows of each of: rewritten, deleted, closed

ADD = (
    "instep tables add packages --text name,description --filters section,priority,installed_size "
    '--show section,version --where "not obsolete" --newest updated_at'
)
LEXICAL = 'instep search packages "chess engine" --mode lexical --limit 3'
DENSE = 'instep search packages "something to play against the machine on a board" --mode dense --limit 3'
HYBRID = 'instep search packages "keep encrypted copies of my files on another host" --limit 3 --where "installed_size < 50000"'

BACKUP = {"restic", "borgbackup", "duplicity", "rsync"}


def tell(terminal: Terminal, settings: Settings, rows: int | None) -> Answer:
    """Tell it all; exit code 1 where a claim does not hold. `rows`: None for as many as take about two minutes."""
    return Story(terminal, settings, rows).tell()


@dataclass
class Words:
    """Words that are in no dictionary, made at random: what is found by them can be known exactly."""

    rewritten: str
    rewritten_to: str
    deleted: str
    closed: str

    @classmethod
    def draw(cls) -> Words:
        return cls(*("q" + _letters(SYSTEM.token()) for _ in range(4)))


@dataclass
class Story:
    terminal: Terminal
    settings: Settings
    rows: int | None
    words: Words = field(default_factory=Words.draw)
    claims: list[tuple[str, bool]] = field(default_factory=list)

    def tell(self) -> Answer:
        began = SYSTEM.monotonic()
        table, packages = self._prepare()
        self._title("2. Derive: chunk embeddings and a search index, made and kept by instep")
        self._run(ADD)
        self._drain("the first run")
        self._title("3. Search: by words, by meaning, by both")
        self._search()
        self._title("4. Change rows by plain SQL, and run again")
        self._change(table, packages)
        self._title("5. How things stand")
        self._show(packages)
        return self._end(table, SYSTEM.monotonic() - began)

    def _prepare(self) -> tuple[Table, list[Package]]:
        self._title("1. Real text in an ordinary table of an embedded PostgreSQL")
        directory = self.settings.data_dir
        began = SYSTEM.monotonic()
        running = embedded.attach(directory) is not None
        dsn = embedded.start(directory)
        how = "runs already" if running else f"started in {duration(SYSTEM.monotonic() - began)}"
        self._say(f"PostgreSQL {how} in {directory} (to stop it: instep db stop)")
        rows, why = (self.rows, "as asked") if self.rows else rows_for(self.settings)
        found = records.read(directory, rows, self.terminal.note)
        packages = self._marked(found.packages)
        self._say(f"{count(len(packages))} of {count(found.total)} records, evenly chosen: {found.origin}")
        if found.total > len(packages):
            self._say(f"  {why} (--rows loads another number)")
        table, began = Table(dsn), SYSTEM.monotonic()
        with loading(self.terminal, "packages", len(packages)) as told:
            written = table.load(packages, told)
        self._say(
            f"COPY packages: {count(len(packages))} rows, {count(written)} of them new or different, "
            f"in {duration(SYSTEM.monotonic() - began)}"
        )
        return table, packages

    def _marked(self, packages: Sequence[Package]) -> list[Package]:
        """The rows that will be changed get a word each that only they have."""
        others = [package.name for package in packages if package.name not in WANTED]
        step = len(others) // (3 * CHANGED)
        picked = others[step // 2 :: step][: 3 * CHANGED]
        words = [self.words.rewritten, self.words.deleted, self.words.closed]
        word_of = {name: words[i % 3] for i, name in enumerate(picked)}
        self.picked = {word: [name for name in picked if word_of[name] == word] for word in words}
        return [
            replace(package, description=f"{package.description}\n\n{word_of[package.name]}")
            if package.name in word_of
            else package
            for package in packages
        ]

    def _drain(self, which: str) -> dict[str, Any]:
        done = self._run("instep run packages")
        if done.payload.get("interrupted") or done.payload["search"].get("interrupted"):
            raise Ends("the demo was interrupted; start it again with: instep demo", exit_code=130)
        self._claim(
            f"{which} ended well: nothing failed, nothing waits",
            done.exit_code == 0 and not _left(done.payload),
        )
        return done.payload

    def _search(self) -> None:
        lexical = self._run(LEXICAL).payload["results"]
        self._claim(
            "each of these rows has the words",
            bool(lexical) and all("chess" in _whole(one) for one in lexical),
        )
        dense = self._run(DENSE).payload["results"]
        games = [one for one in dense if str(one["fields"].get("section", "")).endswith("games")]
        self._claim(
            f"by meaning: {len(games)} of {len(dense)} are games, and none was asked for by that word",
            len(games) * 2 > len(dense),
        )
        hybrid = self._run(HYBRID).payload
        self._claim(
            "by both: a backup program, from two legs that answered",
            bool(BACKUP & _keys(hybrid["results"])) and set(hybrid["legs"]) == {"dense", "lexical"},
        )  # fmt: skip

    def _change(self, table: Table, packages: Sequence[Package]) -> None:
        words, picked = self.words, self.picked
        self._say(
            f'{CHANGED} rows each have the made-up words "{words.rewritten}", "{words.deleted}", "{words.closed}"'
        )
        for word, names in picked.items():
            self._claim(f'"{word}" finds exactly its {CHANGED} rows', self._found(word) == set(names))
        rewritten = picked[words.rewritten]
        self._sent(table.rewrite(rewritten, words.rewritten, words.rewritten_to))
        self._sent(table.delete(picked[words.deleted]))
        self._sent(table.close(picked[words.closed]))
        self._claim(
            "before any run the old words find nothing already", not any(self._found(w) for w in picked)
        )
        payload = self._drain("the second run")
        for title, counters in (("embeddings", payload), ("search index", payload["search"])):
            self._claim(
                f"of {count(len(packages))} rows only those were worked ({title}: {counters['indexed']} made, "
                f"{counters['removed']} removed)",
                counters["indexed"] == CHANGED and counters["removed"] == 2 * CHANGED,
            )
        self._claim("the old words find nothing", not any(self._found(word) for word in picked))
        self._claim(
            f'the new word "{words.rewritten_to}" finds its rows',
            self._found(words.rewritten_to) == set(rewritten),
        )
        touched = table.touch()
        self._sent(touched)
        payload = self._drain("the third run")
        self._claim(
            f"{count(touched.rows)} updates of a column that nothing is derived from made no work at all",
            not any(one[what] for one in (payload, payload["search"]) for what in ("enqueued", "indexed", "removed")),
        )  # fmt: skip

    def _show(self, packages: Sequence[Package]) -> None:
        status = self._run("instep status").payload["derivations"]
        self._claim(
            "both derivations are in step, all rows covered, nothing dead",
            all(one["state"] == "in step" and one["coverage"] == 1 and not one["dead"] for one in status),
        )
        names = {package.name for package in packages}
        shown = next((name for name in WANTED if name in names), packages[0].name)
        explained = self._run(f"instep explain packages.embed {shown}").payload
        self._claim("its row says the same", bool(explained["eligible"]) and bool(explained["stamps"]))

    def _end(self, table: Table, seconds: float) -> Answer:
        failed = [claim for claim, holds in self.claims if not holds]
        self._title("All is as it says" if not failed else "NOT all is as it says")
        for claim in failed:
            self._say(f"  did not hold: {claim}")
        directory = self.settings.data_dir
        shown = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
        self._say(
            f"{len(self.claims)} claims checked in {duration(seconds)}. The data stays in {shown}. To go on with it:",
            "",
            f"  export INSTEP_DATA_DIR={shlex.quote(str(directory))}",
            '  instep search packages "draw a map" --facets',
            "  instep db psql                        change rows, then: instep run packages",
            "  instep worker --follow                or let a worker keep all in step",
            "  instep tables add TABLE --text …      your own table: DATABASE_URL=… instep tables add …",
            f"  instep db stop && rm -r {shlex.quote(str(shown))}",
        )
        payload = {
            "ok": not failed,
            "rows": table.count(),
            "seconds": round(seconds, 1),
            "data_dir": str(directory),
            "claims": [{"claim": claim, "holds": holds} for claim, holds in self.claims],
        }
        return Answer(payload, exit_code=1 if failed else 0)

    def _run(self, line: str) -> Answer:
        """A command line, shown and run as a user would."""
        from instep.cli.main import perform

        self._say("", _styled(f"$ {line}", "bold cyan"))
        return perform(shlex.split(line)[1:], Surroundings(self.settings, aside=self.terminal.json, yes=True))

    def _found(self, word: str) -> set[str]:
        """The rows that a search by words finds, without showing it."""
        from instep.cli.main import perform

        quiet = Surroundings(self.settings, silent=True)
        return _keys(perform(["search", "packages", word, "--mode", "lexical"], quiet).payload["results"])

    def _claim(self, claim: str, holds: bool) -> None:
        self.claims.append((claim, holds))
        self._say(_styled(f"  ✓ {claim}", "green") if holds else _styled(f"  ✗ {claim}", "bold red"))

    def _sent(self, sent: Sent) -> None:
        self._say(_styled(f"SQL> {sent.statement};", "cyan"), f"     {plural(sent.rows, 'row')}")

    def _title(self, title: str) -> None:
        self._say("", _styled(title, "bold"), _styled("─" * len(title), "dim"))

    def _say(self, *lines: Any) -> None:
        show = self.terminal.note if self.terminal.json else lambda line: self.terminal.lines([line])
        for line in lines:
            show(line)


def _styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(text, style)


def _letters(number: int) -> str:
    """A number as a word of eight letters."""
    letters = ""
    for _ in range(8):
        number, digit = divmod(number, 26)
        letters += chr(ord("a") + digit)
    return letters


def _keys(results: Sequence[dict[str, Any]]) -> set[str]:
    return {one["key"] for one in results}


def _whole(result: dict[str, Any]) -> str:
    return f"{result['key']} {result['text']}".lower()


def _left(payload: dict[str, Any]) -> int:
    return int(payload["pending"]) + int(payload["search"]["pending"])
