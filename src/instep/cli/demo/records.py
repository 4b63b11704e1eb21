"""The demo's real text: Debian's package records with their long descriptions.

    on Debian and its kin  apt's own lists; the English descriptions are fetched once, into the demo's directory,
                           so that nothing of the machine's own lists is changed and no rights are needed
    elsewhere              a sample of the same records, shipped in the package (samples/README.md)

Each step that cannot be taken falls back to the next: long descriptions, then the one-line ones, then the sample.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path

import orjson

Tell = Callable[[str], None]

SYSTEM_LISTS = Path("/var/lib/apt/lists")
HELPER = Path("/usr/lib/apt/apt-helper")
UPDATE_SECONDS = 240
SAMPLE = "samples/packages.jsonl.gz"

# Rows that the demo's searches ask for: in every selection, however small.
WANTED = (
    "gnuchess",
    "stockfish",
    "xboard",
    "imagemagick",
    "gimp",
    "restic",
    "borgbackup",
    "duplicity",
    "rsync",
    "mpv",
)


@dataclass(frozen=True, slots=True)
class Package:
    """One row of the demo's table. `installed_size` in kB; `description` begins with the one-line synopsis."""

    name: str
    version: str
    section: str
    priority: str
    architecture: str
    maintainer: str
    installed_size: int
    tags: str
    homepage: str
    description: str


COLUMNS = tuple(field.name for field in fields(Package))


@dataclass(frozen=True, slots=True)
class Records:
    """A selection of what was found, of how many, and where that is from, in words."""

    packages: list[Package]
    total: int
    origin: str


def read(directory: Path, rows: int, tell: Tell) -> Records:
    """`rows` of the machine's records, or of the sample's. `directory`: the demo's own, for what is fetched."""
    if shutil.which("apt-cache"):
        found = _of_apt(directory, rows, tell)
        if found.packages:
            return found
        tell("apt has no package records here: using the sample that comes with instep")
    else:
        tell("this machine has no apt: using the sample of Debian's package records that comes with instep")
    return sample(rows)


def sample(rows: int) -> Records:
    """Of the records that are shipped with the package."""
    data = files("instep.cli.demo").joinpath(SAMPLE).read_bytes()
    lines = gzip.decompress(data).splitlines()
    packages = {package.name: package for package in (Package(**orjson.loads(line)) for line in lines)}
    names = chosen(list(packages), rows)
    return Records(
        [packages[name] for name in names], len(packages), "the sample that comes with instep (Debian 12)"
    )


def chosen(names: Sequence[str], rows: int) -> list[str]:
    """About every n-th, so that all sections are among them, and the wanted ones; in order."""
    if rows >= len(names):
        return sorted(names)
    wanted = [name for name in WANTED if name in set(names)][:rows]
    others = sorted(set(names) - set(wanted))
    left = rows - len(wanted)
    return sorted([*wanted, *(others[i * len(others) // left] for i in range(left))])


def as_lines(packages: Iterable[Package]) -> bytes:
    """The sample's format: a JSON object for each line."""
    return b"".join(orjson.dumps(asdict(package)) + b"\n" for package in packages)


def _of_apt(directory: Path, rows: int, tell: Tell) -> Records:
    lists = _lists_with_descriptions(directory, tell)
    blocks = _by_name(_output(["apt-cache", "dumpavail"]))
    if not blocks and lists is not None:  # a container image without lists: those that were fetched serve
        blocks = _by_name(_output(["apt-cache", *_private(directory), "dumpavail"]))
    picked = [_fields(blocks[name]) for name in chosen(list(blocks), rows)]
    digests = {values.get("Description-md5", "") for values in picked}
    long = dict(_descriptions(lists, digests)) if lists is not None else {}
    packages = [package for values in picked if (package := _package(values, long)) is not None]
    kind = "with their long descriptions" if long else "with their one-line descriptions"
    return Records(packages, len(blocks), f"apt's package records, {kind}")


def _by_name(dump: str) -> dict[str, str]:
    """Record by package name, unread: there are tens of thousands, and few are wanted."""
    return {
        block.partition("\n")[0].removeprefix("Package: "): block
        for block in dump.split("\n\n")
        if block.startswith("Package: ")
    }


def _lists_with_descriptions(directory: Path, tell: Tell) -> Path | None:
    """Where the English descriptions are: in the machine's lists, or in the demo's own, fetched now if need be."""
    own = directory / "apt" / "lists"
    for lists in (SYSTEM_LISTS, own):
        if any(lists.glob("*Translation-en*")):
            return lists
    tell(
        "fetching Debian's long package descriptions with apt-get update (about 16 MB, once), because this machine's "
        f"own lists have one line for each package alone; they go to {own}, nothing else changes"
    )
    (own / "partial").mkdir(parents=True, exist_ok=True)
    command = [
        "apt-get",
        "-q",
        *_private(directory),
        "-o",
        "Acquire::Languages=en",
        "-o",
        "Acquire::Retries=1",
        "update",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=UPDATE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        tell(f"that did not work ({error}): going on with the one-line descriptions")
        return None
    if not any(own.glob("*Translation-en*")):
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        tell(
            f"that did not work ({words[-1] if words else 'no words'}): going on with the one-line descriptions"
        )
        return None
    return own


def _private(directory: Path) -> list[str]:
    """apt on lists and caches of the demo's own: it needs no rights and leaves the machine's as they are."""
    own = (directory / "apt").resolve()
    return [
        "-o", f"Dir::State::lists={own / 'lists'}", "-o", f"Dir::Cache={own / 'cache'}", "-o", "Debug::NoLocking=1",
        "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return ""  # the caller says what it falls back to
    return done.stdout.decode("utf-8", "replace")


def _descriptions(lists: Path, digests: Set[str]) -> Iterator[tuple[str, str]]:
    """(Description-md5, long description) of the records in apt's translation files that are asked for."""
    for file in sorted(lists.glob("*Translation-en*")):
        for block in _output([str(HELPER), "cat-file", str(file)]).split("\n\n"):
            digest = block.partition("\nDescription-md5: ")[2].partition("\n")[0]
            if digest in digests:
                yield digest, _text(_fields(block)["Description-en"])


def _fields(block: str) -> dict[str, str]:
    """A record of the Debian control format: `Field: value`, continued on lines that begin with a space."""
    values: dict[str, str] = {}
    field = ""
    for line in block.splitlines():
        if line[:1].isspace():
            values[field] = values.get(field, "") + "\n" + line
        else:
            field, _, value = line.partition(":")
            values[field] = value.strip()
    return values


def _text(value: str) -> str:
    """A description as text: " ." is an empty line, lines of a paragraph are joined, indented ones kept."""
    paragraphs: list[list[str]] = [[]]
    for line in value.split("\n"):
        if line.strip() == ".":
            paragraphs.append([])
        elif re.match(r"\s\s+\S", line):
            paragraphs.append([line.strip()])
        else:
            paragraphs[-1].append(line.strip())
            if len(paragraphs) == 1:
                paragraphs.append([])  # the synopsis stands alone
    return "\n\n".join(" ".join(lines) for lines in paragraphs if lines)


def _package(values: dict[str, str], long: dict[str, str]) -> Package | None:
    name, synopsis = values.get("Package"), values.get("Description") or values.get("Description-en")
    if not name or not synopsis:
        return None
    size = values.get("Installed-Size", "")
    return Package(
        name=name,
        version=values.get("Version", ""),
        section=values.get("Section", ""),
        priority=values.get("Priority", ""),
        architecture=values.get("Architecture", ""),
        maintainer=values.get("Maintainer", "").partition(" <")[0],  # without the address
        installed_size=int(size) if size.isdigit() else 0,
        tags=" ".join(values.get("Tag", "").replace("\n", " ").split()),
        homepage=values.get("Homepage", ""),
        description=long.get(values.get("Description-md5", ""), _text(synopsis)),
    )
