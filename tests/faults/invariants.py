"""What must hold when nothing changes any more and the runs have drained: derived = f(source).

Plain SQL and Python that compute f(source) once more. Of the product only names of tables and columns are used, as
they stand in the database, and the model server's `vector_of`; none of the engine's code. Sources must be short
texts, stripped and without markup, so that each is one chunk.

    assert await check(conn, "articles.embed") == []

`rows` says what the source is: a select of its key columns, whether the row is eligible, its text, and the hashed
columns as text[]. `failed` are the keys whose item the test made fail: attempts and dead letters are right there.
Each violation is named; test_invariants.py plants one after the other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from psycopg import AsyncConnection, sql

from instep.testing.model_server import vector_of

Key = tuple[Any, ...]
VectorOf = Callable[[str, int], np.ndarray]

ARTICLES = "select id, published is true, title, array[title]::text[] from articles"
"""The table of tests/postgres/world.py, embedding_world.py and faults/scene.py."""

NAMES = (
    "missing",  # an eligible entity without an output, or without its stamp
    "stale",  # an output of other content
    "wrong vector",  # a chunk's vector is not its text's
    "wrong layout",  # a layout where the one chunk is the whole text
    "duplicate",  # a second output beside the right one
    "orphan vector",  # an output of an entity that has none
    "orphan stamp",
    "wrong stamp",
    "stuck lease",
    "attempts without failure",
    "entry left",
    "dead without failure",
    "orphan dead letter",  # of an entity that is not eligible
    "change left",  # the log still holds a change
    "marker left",  # a sweep is due and was not done
)


@dataclass(frozen=True, slots=True)
class Violation:
    name: str
    derivation: str
    key: Key | None
    target: str | None
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.name in NAMES, self.name


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class _Of:
    """The derivation, as the database describes it."""

    name: str
    source: str
    bit: int
    width: int  # key columns
    output: str  # chunks, toy or words
    targets: Mapping[str, tuple[int, Mapping[str, Any]]]  # those in use: name -> id, spec

    @property
    def suffix(self) -> str:
        return self.name.replace(".", "_")

    @property
    def key(self) -> str:
        return ", ".join(f"key_{n}" for n in range(1, self.width + 1))

    def table(self, kind: str) -> str:
        return sql.Identifier("instep", f"{kind}_{self.suffix}").as_string(None)


async def check(
    conn: AsyncConnection[Any], derivation: str, rows: str = ARTICLES, *, failed: Collection[Key] = (),
    vector: VectorOf = vector_of,
) -> list[Violation]:  # fmt: skip
    """Every violation found, in no order. Call it when nobody works and nobody writes."""
    of = await _describe(conn, derivation)
    eligible = await _source(conn, rows, of.width)
    entries, dead = await _entries(conn, of, eligible, set(failed))
    found = [*entries, *await _left(conn, of), *await _stamps(conn, of, eligible, dead)]
    match of.output:
        case "toy":
            found += await _toy(conn, of, eligible, dead)
        case "words":
            found += await _words(conn, of, eligible, dead)
        case "chunks":
            for target, (id_, spec) in of.targets.items():
                excused = {key for key, name in dead if name == target}
                found += await _chunks(conn, of, target, id_, spec, eligible, excused, vector)
    return found


async def settled(
    conn: AsyncConnection[Any], derivations: Sequence[str], rows: str = ARTICLES, **options: Any
) -> None:
    """Raises AssertionError with every violation of these derivations."""
    found = [violation for name in derivations for violation in await check(conn, name, rows, **options)]
    assert not found, "\n".join(map(str, found))


async def _fetch(conn: AsyncConnection[Any], statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return await (await conn.execute(statement.encode(), values or None)).fetchall()


async def _describe(conn: AsyncConnection[Any], name: str) -> _Of:
    found = await _fetch(
        conn,
        "select d.source, d.bit, jsonb_array_length(s.key), d.catalogue, d.options from instep.derivation d"
        " join instep.source s on s.name = d.source where d.name = %s",
        name,
    )
    assert found, f"there is no derivation {name}"
    source, bit, width, catalogue, options = found[0]
    targets = await _fetch(
        conn,
        "select target, id, spec from instep.target where derivation = %s and state in ('reading', 'filling', 'kept')",
        name,
    )
    output = "toy" if catalogue == "toy" else {"postgres": "words"}.get(options.get("engine", ""), "chunks")
    if options.get("engine") == "tantivy":
        output = "outside"  # index_invariants.py looks into the index itself
    return _Of(name, source, bit, width, output, {target: (id_, spec) for target, id_, spec in targets})


async def _source(conn: AsyncConnection[Any], rows: str, width: int) -> dict[Key, _Row]:
    """The eligible rows: what should stand of them."""
    found = await _fetch(conn, rows)
    assert len({row[:width] for row in found}) == len(found), "`rows` gives a key twice"
    return {tuple(row[:width]): _Row(row[-2] or "", content_hash(row[-1])) for row in found if row[width]}


def content_hash(parts: Sequence[str | None]) -> bytes:
    """Lengths and NULL told apart: sha256 of s<bytes>:<text>, or n, one after the other."""
    told = b""
    for part in parts:
        raw = b"" if part is None else part.encode()
        told += b"n" if part is None else b"s%d:%b" % (len(raw), raw)
    return hashlib.sha256(told).digest()


async def _entries(
    conn: AsyncConnection[Any], of: _Of, eligible: Mapping[Key, _Row], failed: set[Key]
) -> tuple[list[Violation], set[tuple[Key, str]]]:
    """What is wrong with the entries, and (key, target) of the dead letters, whose output may be missing or old."""
    found: list[Violation] = []
    dead: set[tuple[Key, str]] = set()
    rows = await _fetch(
        conn,
        f"select {of.key}, target, token, lease_until, attempts, failed_at, error_kind, last_error from {of.table('outbox')}",
    )
    for row in rows:
        key, (target, token, lease, attempts, died, kind, error) = tuple(row[: of.width]), row[of.width :]

        def wrong(name: str, detail: str = "", key: Key = key, target: str = target) -> None:
            found.append(Violation(name, of.name, key, target, detail))

        if token is not None or lease is not None:
            wrong("stuck lease", f"token {token}, until {lease}")
        if attempts and key not in failed:
            wrong("attempts without failure", f"{attempts}: {kind}: {error}")
        if died is None:
            wrong("entry left")
        else:
            dead.add((key, target))
            if key not in failed:
                wrong("dead without failure", f"{kind}: {error}")
            if key not in eligible:
                wrong("orphan dead letter")
    return found, dead


async def _left(conn: AsyncConnection[Any], of: _Of) -> list[Violation]:
    change = sql.Identifier("instep", f"change_{of.source}").as_string(None)
    changes = await _fetch(conn, f"select {of.key} from {change} where derivations & %s <> 0", of.bit)
    markers = await _fetch(
        conn,
        "select m.seq, m.kind from instep.marker m join instep.derivation d on d.source = m.source"
        " where d.name = %s and m.seq > d.swept_marker",
        of.name,
    )
    return [
        *(Violation("change left", of.name, tuple(key), None) for key in changes),
        *(Violation("marker left", of.name, None, None, f"{seq} {kind}") for seq, kind in markers),
    ]


async def _stamps(
    conn: AsyncConnection[Any], of: _Of, eligible: Mapping[Key, _Row], dead: set[tuple[Key, str]]
) -> list[Violation]:
    rows = await _fetch(conn, f"select {of.key}, target, content_hash from {of.table('stamp')}")
    stamps = {(tuple(row[: of.width]), row[of.width]): row[-1] for row in rows}
    found = []
    for (key, target), hash in stamps.items():
        if target not in of.targets or key not in eligible:
            found.append(Violation("orphan stamp", of.name, key, target))
        elif hash != eligible[key].hash and (key, target) not in dead:
            found.append(Violation("wrong stamp", of.name, key, target))
    for key in eligible:
        for target in of.targets:
            if (key, target) not in stamps and (key, target) not in dead:
                found.append(Violation("missing", of.name, key, target, "no stamp"))
    return found


async def _toy(
    conn: AsyncConnection[Any], of: _Of, eligible: Mapping[Key, _Row], dead: set[tuple[Key, str]]
) -> list[Violation]:
    rows = await _fetch(conn, f"select {of.key}, target, shout from instep.toy")
    stand = {(tuple(row[: of.width]), row[of.width]): row[-1] for row in rows}
    return _compared(of, stand, {key: row.text.upper() for key, row in eligible.items()}, dead)


async def _words(
    conn: AsyncConnection[Any], of: _Of, eligible: Mapping[Key, _Row], dead: set[tuple[Key, str]]
) -> list[Violation]:
    """The lexical table of PostgreSQL; texts must be lower-case words that no stemmer changes."""
    stand: dict[tuple[Key, str], str] = {}
    for target, (id_, _) in of.targets.items():
        table = sql.Identifier("instep", f"lexical_{of.suffix}_{id_}").as_string(None)
        for row in await _fetch(conn, f"select {of.key}, tsvector_to_array(words) from {table}"):
            stand[tuple(row[: of.width]), target] = " ".join(sorted(row[-1]))
    wanted = {key: " ".join(sorted(set(row.text.lower().split()))) for key, row in eligible.items()}
    return _compared(of, stand, wanted, dead)


def _compared(
    of: _Of, stand: Mapping[tuple[Key, str], str], wanted: Mapping[Key, str], dead: set[tuple[Key, str]]
) -> list[Violation]:
    found = []
    for (key, target), text in stand.items():
        if target not in of.targets or key not in wanted:
            found.append(Violation("orphan vector", of.name, key, target, text))
        elif text != wanted[key] and (key, target) not in dead:
            found.append(Violation("stale", of.name, key, target, f"{text!r} for {wanted[key]!r}"))
    for key in wanted:
        for target in of.targets:
            if (key, target) not in stand and (key, target) not in dead:
                found.append(Violation("missing", of.name, key, target))
    return found


async def _chunks(
    conn: AsyncConnection[Any], of: _Of, target: str, id_: int, spec: Mapping[str, Any],
    eligible: Mapping[Key, _Row], excused: set[Key], vector: VectorOf,
) -> list[Violation]:  # fmt: skip
    chunk = sql.Identifier("instep", f"chunk_{of.suffix}_{id_}").as_string(None)
    layout = sql.Identifier("instep", f"layout_{of.suffix}_{id_}").as_string(None)
    chunks: dict[Key, list[tuple[str, bytes, np.ndarray]]] = defaultdict(list)
    for row in await _fetch(conn, f"select {of.key}, text, text_hash, vector::text from {chunk}"):
        text, hash, written = row[of.width :]
        numbers = np.array(written.strip("[]").split(","), dtype=np.float32)
        chunks[tuple(row[: of.width])].append((text, hash, numbers))
    layouts = {  # only of texts of several chunks
        tuple(row[: of.width]): tuple(row[of.width :])
        for row in await _fetch(conn, f"select {of.key}, text_hashes, starts, ends from {layout}")
    }
    found: list[Violation] = []
    prefix, near = str(spec.get("document_prefix", "")), 2e-3 if spec["type"] == "halfvec" else 1e-6
    for key in {*chunks, *layouts} - set(eligible):
        found.append(Violation("orphan vector", of.name, key, target))
    for key, row in eligible.items():
        if key in excused:
            continue

        def wrong(name: str, detail: str = "", key: Key = key) -> None:
            found.append(Violation(name, of.name, key, target, detail))

        stand = chunks.get(key, [])
        right = [one for one in stand if row.text and one[0] == row.text]
        others = [one[0] for one in stand if one[0] != row.text]
        if row.text and not stand:
            wrong("missing")
        elif row.text and not right:
            wrong("stale", f"{others} for {row.text!r}")
        elif others:
            wrong("duplicate" if right else "stale", f"{others} for {row.text!r}")
        for _, hash, numbers in right:
            wanted = vector(prefix + row.text, int(spec["dimensions"]))
            if not np.allclose(numbers, wanted, rtol=0, atol=near):
                wrong("wrong vector", row.text)
            if hash != hashlib.sha256((prefix + row.text).encode()).digest():
                wrong("stale", "the chunk's hash is not its text's")
        if key in layouts:
            wrong("wrong layout", str(layouts[key]))
    return found
