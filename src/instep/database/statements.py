"""Named SQL statements: `.sql` files beside the module that uses them.

A file holds blocks that open with `-- name: NAME`. A block is a template in the sense of
`psycopg.sql.SQL.format`: `{outbox}` is an identifier or fragment that is bound once for each derivation,
`%(keys)s` a parameter that is sent with each execution. Values never become part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from psycopg import sql

_NAME = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


@cache
def load(package: str, file: str) -> Mapping[str, str]:
    """The templates of one file by name. Raises ValueError for text before the first name or a name used twice."""
    text = files(package).joinpath(file).read_text("utf-8")
    parts = _NAME.split(text)
    if any(line and not line.startswith("--") for line in map(str.strip, parts[0].splitlines())):
        raise ValueError(f"{package}/{file}: a statement stands before the first '-- name:' line")
    names = parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}/{file}: a name is used twice")
    return {name: body.strip().rstrip(";") for name, body in zip(names, parts[2::2], strict=True)}


def fragment(text: str) -> sql.SQL:
    """A piece of SQL that holds an expression of the user or of a declaration, for use in a template that is
    executed with parameters: its per cent signs are doubled."""
    return sql.SQL(text.replace("%", "%%"))


def compose(package: str, file: str, name: str, /, **fragments: sql.Composable) -> sql.Composed:
    """One template with its fragments in place, to be a fragment of another."""
    return sql.SQL(load(package, file)[name]).format(**fragments)


def typed(package: str, file: str, name: str, /, **fragments: sql.Composable) -> str:
    """A statement for people to type: a template with its fragments in place, on one line, ended by a semicolon."""
    template = re.sub(r"--.*$", "", load(package, file)[name], flags=re.MULTILINE)
    text = sql.SQL(template).format(**fragments).as_string(None).replace("%%", "%")
    return re.sub(r"\s*\n\s*", " ", text).strip().rstrip(";") + ";"


def storage(package: str, file: str, name: str) -> dict[str, str]:
    """The settings that a template of CREATE TABLE gives its table: `with (fillfactor = 50, …)`."""
    found = re.search(r"\)\s*with\s*\(([^()]*)\)\s*$", load(package, file)[name])
    pairs = (part.split("=") for part in found[1].split(",")) if found else ()
    return {option.strip(): value.strip() for option, value in pairs}


class Statements(dict[str, bytes]):
    """The statements of one file, bound: `Statements("instep.engine", "outbox.sql", outbox=...)["claim"]`.

    They are bytes, ready for `execute`, always with a parameter mapping (`{}` where there is none).
    A template is bound when it is first asked for, so a file may hold templates that need fragments which
    this binding lacks, as long as those are not used.
    """

    def __init__(self, package: str, file: str, /, **fragments: sql.Composable) -> None:
        super().__init__()
        self._package, self._file, self._fragments = package, file, fragments

    def __missing__(self, name: str) -> bytes:
        text = compose(self._package, self._file, name, **self._fragments).as_bytes(None)
        self[name] = text
        return text
