"""The demo's text: apt's records where there are any, and each fall-back below that."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from instep.cli.demo import records

DUMP = """Package: gnuchess
Version: 6.2
Installed-Size: 750
Maintainer: A Person <person@example.org>
Architecture: amd64
Description: Plays a game of chess
Description-md5: aaa
Tag: game::board, role::program,
 use::gameplaying
Section: games
Priority: optional

Package: nano
Version: 7
Description: small editor
Description-md5: bbb
Section: editors
"""
TRANSLATION = """Package: gnuchess
Description-md5: aaa
Description-en: Plays a game of chess
 Gnuchess is a program that
 plays chess.
 .
 Features:
  * an opening book
  * a clock
"""
LONG = "Plays a game of chess\\n\\nGnuchess is a program that plays chess.\\n\\nFeatures:\\n\\n* an opening book\\n\\n* a clock"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine with nothing but the programs that a test gives it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(records, "SYSTEM_LISTS", tmp_path / "lists")
    monkeypatch.setattr(records, "HELPER", programs / "apt-helper")
    (tmp_path / "lists").mkdir()

    def give(name: str, script: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    return give


def dump(tmp_path: Path) -> str:
    (tmp_path / "dump").write_text(DUMP)
    return f"/bin/cat {tmp_path / 'dump'}"


def test_long_descriptions_are_joined_by_their_digest(machine, tmp_path: Path) -> None:
    machine("apt-cache", dump(tmp_path))
    machine("apt-helper", '[ "$1" = cat-file ] && /bin/cat "$2"')
    (tmp_path / "lists" / "x_Translation-en").write_text(TRANSLATION)
    told: list[str] = []
    found = records.read(tmp_path, 10, told.append)
    chess, nano = found.packages
    assert chess.description == LONG.replace("\\n", "\n")
    assert chess.tags == "game::board, role::program, use::gameplaying"
    assert chess.maintainer == "A Person", "addresses of people stay where they are"
    assert (chess.installed_size, nano.installed_size) == (750, 0)
    assert nano.description == "small editor"
    assert (found.total, told) == (2, [])


def test_fetching_is_announced_and_its_failure_costs_only_the_long_descriptions(
    machine, tmp_path: Path
) -> None:
    machine("apt-cache", dump(tmp_path))
    machine("apt-get", "echo 'E: no network' >&2; exit 100")
    told: list[str] = []
    found = records.read(tmp_path, 10, told.append)
    assert [package.description for package in found.packages] == ["Plays a game of chess", "small editor"]
    assert "apt-get update" in told[0]
    assert "because" in told[0]
    assert "E: no network" in told[1]


def test_fetching_touches_nothing_but_the_demos_directory(machine, tmp_path: Path) -> None:
    machine("apt-cache", dump(tmp_path))
    machine("apt-get", f'echo "$@" > {tmp_path / "arguments"}')
    records.read(tmp_path / "demo", 10, lambda line: None)
    arguments = (tmp_path / "arguments").read_text()
    assert f"Dir::State::lists={tmp_path / 'demo' / 'apt' / 'lists'}" in arguments
    assert f"Dir::Cache={tmp_path / 'demo' / 'apt' / 'cache'}" in arguments


@pytest.mark.parametrize("script", ["exit 1", ":"])
def test_apt_without_records_leaves_the_sample(machine, tmp_path: Path, script: str) -> None:
    machine("apt-cache", script)
    machine("apt-get", "exit 1")
    found = records.read(tmp_path, 50, lambda line: None)
    assert len(found.packages) == 50
    assert "sample" in found.origin


def test_no_apt_leaves_the_sample(machine, tmp_path: Path) -> None:
    told: list[str] = []
    found = records.read(tmp_path, 10_000, told.append)
    assert (len(found.packages), found.total) == (500, 500)
    assert "no apt" in told[0]
    assert {package.name for package in found.packages} >= set(records.WANTED)
    assert not any("@" in package.maintainer for package in found.packages)


def test_choice_is_even_and_has_what_the_searches_ask_for() -> None:
    names = [f"p{number:05}" for number in range(10_000)] + list(records.WANTED)
    picked = records.chosen(names, 110)
    assert (len(picked), len(set(picked))) == (110, 110)
    assert set(picked) >= set(records.WANTED)
    others = [int(name[1:]) for name in picked if name not in records.WANTED]
    assert {after - before for before, after in pairwise(others)} == {100}
    assert records.chosen(names, 20_000) == sorted(names)
