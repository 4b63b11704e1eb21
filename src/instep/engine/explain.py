"""Why one row is as it is, and what happens to it next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from instep.database.statements import Statements
from instep.engine.declaration import Columns, Declaration, Key, Target, fragments
from instep.engine.ports import Conn

Outputs = Mapping[str, Mapping[str, Any]]
"""What stands of one entity's outputs, by target and in the catalogue's own words: {"model-v1": {"chunks": 58}}."""


@dataclass(frozen=True, slots=True)
class StampSeen:
    target: str
    content_hash: bytes | None
    stamped_at: datetime
    seconds: float  # since then
    stale: bool  # made from other content than the row has now

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "content_hash": _hex(self.content_hash),
            "stamped_at": self.stamped_at.isoformat(),
            "stale": self.stale,
        }


@dataclass(frozen=True, slots=True)
class EntrySeen:
    target: str
    state: str  # waiting | leased | parked | dead | discarded
    generation: int
    claims: int
    attempts: int
    enqueued_at: datetime
    waited_seconds: float
    retry_seconds: float | None  # until a parked one is let in
    failed_at: datetime | None
    failed_hash: bytes | None
    discard_reason: str | None
    error_kind: str | None
    last_error: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "state": self.state,
            "generation": self.generation,
            "claims": self.claims,
            "attempts": self.attempts,
            "enqueued_at": self.enqueued_at.isoformat(),
            "waited_seconds": round(self.waited_seconds, 1),
            "retry_seconds": None if self.retry_seconds is None else round(self.retry_seconds, 1),
            "failed_at": self.failed_at.isoformat() if self.failed_at else None,
            "discard_reason": self.discard_reason,
            "error_kind": self.error_kind,
            "last_error": self.last_error,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """`stamps`, `entries` and `outputs` are those of the targets in use, the reading one's first."""

    derivation: str
    key: Key
    found: bool  # the row exists
    eligible: bool
    reasons: tuple[str, ...]
    content_hash: bytes | None
    stamps: tuple[StampSeen, ...]
    entries: tuple[EntrySeen, ...]
    next: str
    outputs: Outputs = field(default_factory=dict)
    unmade: tuple[str, ...] = ()  # targets in use whose output is not of the row's content now
    logged: bool = False  # a change that was not taken up yet

    @property
    def in_sync(self) -> bool:
        """Every target in use has output of the row's content now (none, where the row is not eligible)."""
        return not self.logged and not self.entries and not self.unmade

    @property
    def entry(self) -> EntrySeen | None:
        return self.entries[0] if self.entries else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.derivation,
            "key": self.key[0] if len(self.key) == 1 else list(self.key),  # as in search and dead letters
            "found": self.found,
            "eligible": self.eligible,
            "reasons": list(self.reasons),
            "content_hash": _hex(self.content_hash),
            "stamps": [stamp.as_dict() for stamp in self.stamps],
            "entry": self.entry.as_dict() if self.entry else None,
            "entries": [entry.as_dict() for entry in self.entries],
            "outputs": {target: dict(seen) for target, seen in self.outputs.items()},
            "next": self.next,
        }


async def explain(
    conn: Conn,
    declaration: Declaration,
    targets: Sequence[Target],
    key: Key,
    outputs: Outputs | None = None,
    max_attempts: int = 3,
) -> Explanation:
    """Look at one row of one derivation. `targets` as `declared.read_targets` gives them; a key that no row has is
    explained too (what is left of it). Reads alone."""
    columns = Columns(declaration.source.key)
    statements = Statements("instep.engine", "explain.sql", **fragments(declaration))
    one = columns.one(key)
    in_use = [
        target for target in targets if target.derivation == declaration.name and target.state != "retired"
    ]
    order = {target.name: place for place, target in enumerate(in_use)}

    row = await (await conn.execute(statements["row"], one)).fetchone()
    eligible, content_hash = (bool(row[0]), row[1]) if row else (False, None)
    stamp_rows = await (await conn.execute(statements["stamps"], one)).fetchall()
    entry_rows = await (await conn.execute(statements["entries"], one)).fetchall()
    logged = await (await conn.execute(statements["logged"], {**one, "bit": declaration.bit})).fetchone()
    assert logged is not None  # a select of one value

    stamps = [
        StampSeen(target, hash, at, seconds, not eligible or hash != content_hash)
        for target, hash, at, seconds in stamp_rows
        if target in order
    ]
    entries = [_entry(*values) for values in entry_rows if values[0] in order]
    stamps.sort(key=lambda stamp: order[stamp.target])
    entries.sort(key=lambda entry: order[entry.target])
    return Explanation(
        declaration.name,
        key,
        row is not None,
        eligible,
        _reasons(declaration, row is not None, eligible),
        content_hash,
        tuple(stamps),
        tuple(entries),
        _next(in_use, eligible, stamps, entries, logged[0], max_attempts),
        outputs or {},
        _unmade(in_use, eligible, stamps),
        logged[0],
    )


def _entry(
    target: str, generation: int, claims: int, attempts: int, enqueued_at: datetime, waited: float, leased: bool,
    parked: float | None, failed_at: datetime | None, failed_hash: bytes | None, discarded_at: datetime | None,
    discard_reason: str | None, kind: str | None, error: str | None,
) -> EntrySeen:  # fmt: skip
    if failed_at is not None:
        state = "discarded" if discarded_at is not None else "dead"
    elif leased:
        state = "leased"
    else:
        state = "waiting" if parked is None else "parked"
    retry = max(parked, 0.0) if state == "parked" and parked is not None else None
    return EntrySeen(
        target, state, generation, claims, attempts, enqueued_at, waited, retry, failed_at, failed_hash,
        discard_reason, kind, error,
    )  # fmt: skip


def _reasons(declaration: Declaration, found: bool, eligible: bool) -> tuple[str, ...]:
    if not found:
        return (f"no row of {declaration.source.schema}.{declaration.source.table} has this key",)
    if declaration.eligible == "true":
        return ("no condition",)
    return (f"the condition is {'met' if eligible else 'not met'}: {declaration.eligible}",)


def _next(
    targets: Sequence[Target],
    eligible: bool,
    stamps: Sequence[StampSeen],
    entries: Sequence[EntrySeen],
    logged: bool,
    max_attempts: int,
) -> str:
    if logged:
        return "a change of this row is taken up by the next run"
    for entry in entries:  # the first that will be worked
        if entry.state == "leased":
            return "it is being worked now"
        if entry.state == "parked":
            attempt = f"attempt {min(entry.attempts + 1, max_attempts)} of {max_attempts}"
            return f"it is tried again in {entry.retry_seconds or 0:.0f} s, {attempt}"
        if entry.state == "waiting":
            work = "worked" if eligible else "cleared"
            return f"it is {work} by the next run" + (", alone" if entry.claims >= 5 else "")
    for entry in entries:
        if entry.state == "dead":
            return "nothing until it is replayed (instep dead replay) or its content changes"
        return f"nothing until its content changes: it was discarded ({entry.discard_reason})"
    if not eligible:
        return "its outputs are cleared after the next sweep" if stamps else "nothing: it is not eligible"
    if not _unmade(targets, eligible, stamps):
        return "nothing: it is in step"
    return "the next sweep finds it"


def _unmade(targets: Sequence[Target], eligible: bool, stamps: Sequence[StampSeen]) -> tuple[str, ...]:
    if not eligible:
        return tuple([stamp.target for stamp in stamps])
    fresh = {stamp.target for stamp in stamps if not stamp.stale}
    return tuple([target.name for target in targets if target.name not in fresh])


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
