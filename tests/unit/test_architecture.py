"""The rules of the house that no other tool checks (ARCHITECTURE; layers are import-linter's, in pyproject.toml).

Each check is a function from text to findings, shown to find what it is for, then applied to every file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "instep"
LONGEST = 400
NO_ROOM_FOR = {"utils", "util", "common", "misc", "base", "helpers", "helper"}
FACES = re.compile(r"^(cli|server|console|web)(/|\.py)|^catalogues/\w+/(commands|routes|pages)\b")

MODULES = sorted(SOURCE.rglob("*.py"))
TEMPLATES = sorted(SOURCE.rglob("*.sql"))


def place(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def named(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", files, ids=place)


# Shape


@named(MODULES + TEMPLATES)
def test_a_file_is_one_room(file: Path) -> None:
    lines = len(file.read_text("utf-8").splitlines())
    assert lines <= LONGEST, f"{place(file)} has {lines} lines: over {LONGEST} it is two rooms"


def test_every_module_is_named_for_what_it_holds() -> None:
    bad = [
        place(file) for file in MODULES if NO_ROOM_FOR & {file.stem, *file.relative_to(SOURCE).parent.parts}
    ]
    assert bad == []


# SQL stands in .sql files

_SQL = re.compile(
    r"""^\s*(
        select\s.*\bfrom\s | select\s+[\w.]+\( | with\s+(recursive\s+)?\w+\s*(\([^)]*\)\s*)?as\s+(materialized\s+)?\(
      | insert\s+into\s | update\s+\S+\s+(as\s+\w+\s+)?set\s | delete\s+from\s | merge\s+into\s
      | (create|alter|drop)\s+(or\s+replace\s+|unlogged\s+|temporary\s+|temp\s+|unique\s+|materialized\s+)*
            (table|index|view|schema|function|trigger|type|sequence|extension|role|database|policy|publication)\s
      | truncate\s+\S | copy\s.*\b(from|to)\s+std | lock\s+table\s | vacuum\b.*\S | analyze\s+\S
      | set\s+(local|session)\s+\w | set\s+\w+\s*= | begin\s+isolation
      | (grant|revoke)\s[\w\s,]+\son\s+(table|schema|database|all|sequence|function|\{) | refresh\s+materialized
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string and bytes constant but docstrings; what stands in braces of an f-string becomes {}."""
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def sql_in_strings(text: str) -> list[str]:
    """Statements by how they begin. One with an ellipsis is shown, not executed."""
    return [
        f"line {line}: {found[:60]!r}"
        for line, found in strings(ast.parse(text))
        if _SQL.match(found) and "…" not in found
    ]


@pytest.mark.parametrize(
    "code",
    [
        "x = 'select a from b'",
        "x = b'SELECT now()'",
        "x = f'select * from {table} where a'",
        "x = f'update {table} set a = 1'",
        "x = '''\n  with a as (select 1) select'''",
        "x = 'insert into a values (1)'",
        "x = 'delete from only a'",
        "x = 'create unique index i on t (a)'",
        "x = 'alter table t add c integer'",
        "x = 'drop table if exists t'",
        "x = sql.SQL('truncate {}')",
        "x = 'set local work_mem = 1'",
        "x = 'set work_mem = 1'",
        "x = f'grant select, insert on {table} to x'",
        "x = 'refresh materialized view x'",
        "def f():\n    'a docstring'\n    return 'lock table t in share mode'",
    ],
)
def test_the_check_sees_sql(code: str) -> None:
    assert sql_in_strings(code)


@pytest.mark.parametrize(
    "code",
    [
        "x = 'select one of these'",
        "x = 'update instep'",
        "x = 'with a name that is too long'",
        "x = 'create the table first'",
        "x = 'drop it'",
        "x = 'grant temporary on the database, and select on the table, to'",
        "x = 'update packages set closed = true where …'",
        "x = 'set INSTEP_DATA_DIR to a shorter path'",
        "'''select a from b'''",
        "def f():\n    'select a from b'",
    ],
)
def test_the_check_lets_sentences_pass(code: str) -> None:
    assert not sql_in_strings(code)


@named([file for file in MODULES if not place(file).startswith("database/")])
def test_sql_stands_in_sql_files(file: Path) -> None:
    assert sql_in_strings(file.read_text("utf-8")) == []


_QUEUE_WRITE = re.compile(
    r"\b(insert\s+into|update|delete\s+from|truncate|merge\s+into|copy)\s+(only\s+)?"
    r"(\{(outbox|stamp|change)\w*\}|\"?instep\"?\.\"?(outbox|stamp|change)_)",
    re.IGNORECASE,
)


def test_the_check_sees_writes_to_the_engines_tables() -> None:
    assert _QUEUE_WRITE.search("with gone as (delete from {outbox} where true) select 1")
    assert _QUEUE_WRITE.search("INSERT INTO instep.stamp_articles_embed values (1)")
    assert not _QUEUE_WRITE.search("select * from {outbox} for update")


@named([file for file in TEMPLATES if not place(file).startswith(("engine/", "database/"))])
def test_only_the_engine_writes_its_tables(file: Path) -> None:
    assert [match[0] for match in _QUEUE_WRITE.finditer(file.read_text("utf-8"))] == []


def loaded_files(text: str) -> set[str]:
    return {found for _, found in strings(ast.parse(text)) if re.fullmatch(r"[\w/]+\.sql", found)}


def test_the_check_sees_which_files_a_module_loads() -> None:
    assert loaded_files("x = Statements('instep.engine', 'outbox.sql', a=1)") == {"outbox.sql"}
    assert loaded_files("FILE = ('instep.engine', 'sweep.sql')") == {"sweep.sql"}
    assert loaded_files("'''See outbox.sql'''\nx = 'a.sql is missing'") == set()


@named(MODULES)
def test_statements_are_used_by_the_module_of_their_name(file: Path) -> None:
    assert loaded_files(file.read_text("utf-8")) <= {f"{file.stem}.sql"}


@named([file for file in TEMPLATES if file.parent.name != "migrations"])
def test_every_statement_file_has_its_module(file: Path) -> None:
    module = file.with_suffix(".py")
    assert module.exists(), f"no module {module.name} stands beside {place(file)}"
    assert file.name in loaded_files(module.read_text("utf-8")), f"{module.name} does not load {file.name}"


# What implements a port passes its suite

_SINK = {"transactional", "prepare", "intact", "write", "finish", "drop"}


def sinks(text: str) -> set[str]:
    """The classes that have all that a Sink has (those that get it from another class are that class's)."""
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and {name for part in node.body for name in _defined(part)} >= _SINK
        and not any(isinstance(parent, ast.Name) and parent.id == "Protocol" for parent in node.bases)
    }


def _defined(part: ast.stmt) -> list[str]:
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
        return [part.name]
    if isinstance(part, ast.AnnAssign):
        return [part.target.id] if isinstance(part.target, ast.Name) else []
    return (
        [name.id for name in part.targets if isinstance(name, ast.Name)]
        if isinstance(part, ast.Assign)
        else []
    )


def tried_sinks(text: str) -> set[str]:
    """The keys of HARNESSES."""
    return {
        str(ast.literal_eval(key))
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        and any(isinstance(name, ast.Name) and name.id == "HARNESSES" for name in node.targets)
        for key in node.value.keys
        if key is not None
    }  # fmt: skip


def test_the_check_sees_a_sink() -> None:
    methods = "".join(f"    async def {name}(self): ...\n" for name in sorted(_SINK - {"transactional"}))
    assert sinks(f"class A:\n    transactional = True\n{methods}") == {"A"}
    assert sinks(f"class A:\n    transactional: bool = True\n{methods}") == {"A"}
    assert sinks(f"class A(Protocol):\n    transactional = True\n{methods}") == set()
    assert sinks(f"class A:\n{methods}") == set()


def test_each_sink_is_run_through_the_conformance_suite() -> None:
    here = set().union(*(sinks(file.read_text("utf-8")) for file in MODULES))
    suite = (ROOT / "tests" / "postgres" / "test_conformance.py").read_text("utf-8")
    assert here == tried_sinks(suite), "HARNESSES in test_conformance.py is to have one for each Sink"


# Who imports whom, where a layer is too coarse


@named([file for file in MODULES if not FACES.match(place(file))])
def test_console_and_web_are_for_faces_alone(file: Path) -> None:
    imported = {
        name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    assert not [name for name in imported if re.match(r"instep\.(console|web)\b", name)]


def test_help_loads_nothing_heavy() -> None:
    heavy = ("numpy", "onnxruntime", "onnx", "fastapi", "tantivy", "tokenizers", "sqlalchemy", "aiohttp")
    code = f"import instep.cli.main, sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# Addresses: an installation goes wherever its user's own pip goes

_REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("registry", "npmjs"),
            ("crates", "io"),
            ("proxy", "golang"),
            ("docker", "io"),
            ("ghcr", "io"),
            ("quay", "io"),
            ("anaconda", "org"),
        )
    )
    + "|--(extra-)?index-ur"
    + "l|--find-link"
    + "s|file:"
    + "///",
    re.IGNORECASE,
)


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:  # an unpacked archive
        return [file for top in ("src", "tests", "scripts", "docs") for file in (ROOT / top).rglob("*")]
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_no_file_names_a_registry() -> None:
    assert _REGISTRIES.search("pip install --index-ur" + "l x")
    found = {}
    for file in tracked():
        if file.is_file():
            match = _REGISTRIES.search(file.read_text("utf-8", errors="ignore"))
            if match:
                found[str(file.relative_to(ROOT))] = match[0]
    assert found == {}


def test_the_constraints_are_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len(lines) > 20
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line)] == []
