"""The guards of the protocol, each of which can be switched off: by changing one statement or one method of the
engine, in this process, for as long as a context lasts. There are no switches in the product.

What is replaced must be there, exactly once: a guard that was renamed or moved fails loudly (`GuardMoved`), not as one
that was found to be needless.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from model_parts import KEYS

from instep.chunks.derivation import ChunkDerivation
from instep.chunks.sink import ChunkSink
from instep.database import statements
from instep.engine.commit import Committer
from instep.engine.declaration import Key, Target
from instep.engine.outbox import Outbox
from instep.engine.pause import Switch
from instep.engine.ports import Conn, Item, Loaded, Output
from instep.engine.wave import Hands


class GuardMoved(Exception):
    """The text that a guard consists of is not where it was: mend this file along with the engine."""


@contextmanager
def without_sql(file: str, name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A statement of the engine with other text in places that must be there once each."""
    load = statements.load
    text = load("instep.engine", file)[name]
    for old, new in changes:
        if text.count(old) != 1:
            raise GuardMoved(f"{file}, {name}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)

    def changed(package: str, asked: str) -> Mapping[str, str]:
        known = load(package, asked)
        return {**known, name: text} if (package, asked) == ("instep.engine", file) else known

    with patch.object(statements, "load", changed):
        yield


@contextmanager
def without_code(owner: type, method: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A method with other source text in places that must be there once each."""
    found = vars(owner)[method]
    found = found.fget if isinstance(found, property) else found
    text = textwrap.dedent(inspect.getsource(found))
    for old, new in changes:
        if text.count(old) != 1:
            raise GuardMoved(f"{owner.__name__}.{method}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    names = dict(vars(importlib.import_module(owner.__module__)))
    exec(compile("from __future__ import annotations\n" + text, f"<{method} without a guard>", "exec"), names)
    with patch.object(owner, method, names[method]):
        yield


@contextmanager
def all_of(*contexts: AbstractContextManager[None]) -> Iterator[None]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def content_of_before_the_claim() -> Iterator[None]:
    """What a worker works with was read when it let in what was parked, which it does before each claim."""
    load, let_in, made = ChunkDerivation.load, Outbox.let_in, Hands.__init__
    early: WeakKeyDictionary[ChunkDerivation, dict[tuple[str, Key], Item]] = WeakKeyDictionary()
    of: WeakKeyDictionary[Outbox, Any] = WeakKeyDictionary()

    def making(self: Hands, *values: Any) -> None:
        made(self, *values)
        of[self.outbox] = self.derivation

    async def reading(self: Outbox, conn: Conn, limit: int = 5000) -> int:
        inner = of[self].inner
        found = await load(inner, conn, self.target, [(key,) for key in KEYS], {})
        early[inner] = {(self.target.name, item.key): item for item in found.items}
        return await let_in(self, conn, limit)

    async def remembering(
        self: ChunkDerivation, conn: Conn, target: Target, keys: Sequence[Key], stamped: Mapping[Key, bytes]
    ) -> Loaded:
        known = early.pop(self, None)
        if known is None:
            return await load(self, conn, target, keys, stamped)
        return Loaded([item for key in keys if (item := known.get((target.name, key))) is not None])

    with patch.object(Hands, "__init__", making):
        with patch.object(ChunkDerivation, "load", remembering), patch.object(Outbox, "let_in", reading):
            yield


@contextmanager
def empty_sets_left_alone() -> Iterator[None]:
    """An output of no chunks replaces nothing."""
    write = ChunkSink.write

    async def writing(
        self: ChunkSink, conn: Conn, target: Target, removed: Sequence[Key], outputs: Sequence[Output]
    ) -> None:
        await write(self, conn, target, removed, [output for output in outputs if output.value.hashes])

    with patch.object(ChunkSink, "write", writing):
        yield


@dataclass(frozen=True, slots=True)
class Guard:
    name: str
    what: str
    off: Callable[[], AbstractContextManager[None]]
    breaks: frozenset[str]
    """The invariants whose names a history without it may end with."""


def _guard(name: str, what: str, off: Callable[[], AbstractContextManager[None]], *breaks: str) -> Guard:
    return Guard(name, what, off, frozenset(breaks))


_OUTPUT = ("missing", "stale", "duplicate", "orphan vector", "orphan stamp", "wrong stamp", "wrong layout")

GUARDS = (
    _guard(
        "generation",
        "a commit removes an entry only if its generation is as claimed",
        lambda: without_code(Committer, "_fence", ("if row[-1] != claimed[key]", "if False")),
        *_OUTPUT,
    ),
    _guard(
        "absorb_generation",
        "an absorb counts the generation of an entry up",
        lambda: without_sql("absorb.sql", "enqueue", ("generation = o.generation + 1", "generation = o.generation")),
        *_OUTPUT,
    ),
    _guard(
        "token",
        "a commit writes nothing for an entry with another token",
        lambda: without_sql("commit.sql", "fence", ("o.token = %(token)s", "%(token)s::bigint is not null")),
        "a stale holder wrote",
    ),
    _guard(
        "late_finish",
        "a commit writes nothing for an entry that is gone: a late finish is refused",
        lambda: without_code(
            Committer,
            "commit",
            ("output.key in held.places", "output.key in held.places or output.key in gone"),
            ("if key in held.places", "if key in held.places or key in gone"),
            (
                "held = await self._fence(conn, change)\n",
                "held = await self._fence(conn, change)\n"
                "        waiting = 'select key_1 from instep.outbox_articles_embed where target = %s'\n"
                "        there = await (await conn.execute(waiting, [self._target.name])).fetchall()\n"
                "        gone = {entry.key for entry in change.entries} - set(there)\n",
            ),
        ),
        "a stale holder wrote",
        "a run stopped", *_OUTPUT,
    ),
    _guard(
        "late_failure",
        "a failure of a stale holder is not recorded",
        lambda: all_of(
            without_sql("outbox.sql", "lock", (" and o.token = %(token)s", " and %(token)s is not null")),
            without_sql("outbox.sql", "fail", (" and o.token = %(token)s", " and %(token)s is not null")),
        ),
        "a stale holder wrote",
    ),
    _guard(
        "late_release",
        "a stale holder's release changes nothing",
        lambda: all_of(
            without_sql("outbox.sql", "lock", (" and o.token = %(token)s", " and %(token)s is not null")),
            without_sql("outbox.sql", "release", (" and o.token = %(token)s", " and %(token)s is not null")),
        ),
        "a stale holder wrote",
    ),
    _guard(
        "hash_as_read",
        "the stamp is the hash that was loaded",
        lambda: without_sql(
            "commit.sql",
            "stamp",
            (
                "k.hash from",
                "coalesce((select a.content_hash from {source_rows} as a where {on_a_k}), k.hash) from",
            ),
        ),
        *_OUTPUT,
    ),
    _guard(
        "load_after_claim", "content is read after the claim", content_of_before_the_claim, *_OUTPUT,
        "dead letter of other content", "dead without failure",
    ),
    _guard(
        "sweep_generation",
        "a sweep counts the generation up where the entry has a token",
        lambda: without_sql(
            "sweep.sql",
            "piece",
            ("generation = o.generation + case when o.token is null then 0 else 1 end", "generation = o.generation"),
        ),
        *_OUTPUT,
    ),
    _guard(
        "failure_generation",
        "a failure counts only if generation or content are as loaded",
        lambda: without_sql(
            "outbox.sql",
            "fail",
            ("m.moved and (a.eligible is not true or a.content_hash is distinct from m.hash)", "false"),
        ),
        "dead letter of other content", "dead without failure", "attempts without failure",
    ),
    _guard(
        "failure_eligibility",
        "a failure does not count where the row is not eligible any more",
        lambda: without_sql("outbox.sql", "fail", ("a.eligible is not true or ", "")),
        "orphan dead letter",
    ),
    _guard(
        "sweep_revives",
        "a sweep revives a dead letter of other content, or of a row that is gone",
        lambda: without_sql(
            "sweep.sql",
            "piece",
            (
                "where o.token is not null or o.failed_at is not null and (excluded.generation = 0\n"
                "        or o.failed_hash is not null and o.failed_hash is distinct from excluded.failed_hash)",
                "where o.token is not null",
            ),
        ),
        "dead letter of other content", "orphan dead letter", "dead without failure",
    ),
    _guard(
        "absorb_revives",
        "an absorbed change gives a dead letter a new try",
        lambda: without_sql(
            "absorb.sql",
            "enqueue",
            ("failed_at = null, failed_hash = null,", "failed_at = o.failed_at, failed_hash = o.failed_hash,"),
        ),
        "dead letter of other content", "orphan dead letter", "dead without failure",
    ),
    _guard("empty_set", "an empty output replaces what was there", empty_sets_left_alone, *_OUTPUT),
    _guard(
        "target_locked_by_commit",
        "a commit locks its target's row, so that a retire waits for it",
        lambda: without_sql("commit.sql", "fence", ("state <> 'retired' for share", "state <> 'retired'")),
        "orphan stamp", "a run stopped",
    ),
    _guard(
        "target_locked_by_absorb",
        "an absorb locks the rows of the targets that it makes entries for",
        lambda: without_sql("absorb.sql", "absorb", ("order by derivation, target for share", "order by derivation, target")),
        "entry left",
    ),
    _guard(
        "target_locked_by_sweep",
        "a sweep locks the rows of the targets that it makes entries for",
        lambda: without_sql("sweep.sql", "piece", ("order by target for share", "order by target")),
        "entry left",
    ),
    _guard(
        "target_state",
        "a commit to a retired target writes nothing",
        lambda: without_sql("commit.sql", "fence", (" and state <> 'retired' for share", " for share")),
        "orphan stamp", "a run stopped",
    ),
    _guard(
        "pause",
        "a paused worker starts no wave",
        lambda: without_code(
            Switch, "finishing", ("self._run.finishing or self.paused is not None", "self._run.finishing")
        ),
        "claimed while paused",
    ),
)  # fmt: skip
