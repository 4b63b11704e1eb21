"""`instep explain`: the whole story of one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from instep.cli.parameters import Key, Name
from instep.console.command import Answer, Commands, Example
from instep.console.figures import age, ago, count
from instep.console.progress import key_text
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.engine.explain import EntrySeen, Explanation, StampSeen

HASH_SHOWN = 8  # hex digits: enough to see that two differ


def register(root: Commands) -> None:
    root.leaf(
        "explain",
        [
            Example("instep explain packages.embed gnuchess", "Why this row is as it is, and what happens next."),
            Example("instep explain packages.search gnuchess --json", "The same of its search document, for a script."),
        ],
    )(explain)  # fmt: skip


async def explain(session: Session, name: Name, key: Key) -> Answer:
    """Tell the whole story of one row.

    Eligible or not and why, its hash, what its output was made from, its entry in the outbox, its errors, its
    outputs, and what happens next.
    """
    async with session.app() as app:
        explanation = await app.explain(name, key)
    return Answer(
        explanation.as_dict(),
        [f"{key_text(explanation.key)}   {explanation.derivation}", *_lines(explanation)],
    )


def _lines(seen: Explanation) -> Iterator[Any]:
    yield _line("eligible", f"{'yes' if seen.eligible else 'no'} ({'; '.join(seen.reasons)})")
    yield _line("content", f"hash {_short(seen.content_hash)}" if seen.content_hash else "-")
    for stamp in seen.stamps:
        yield _line("made from", _stamp(stamp))
    if not seen.stamps:
        yield _line("made from", "nothing yet")
    for outputs in seen.outputs.values():
        yield _line("outputs", _outputs(outputs))
    for entry in seen.entries:
        yield _line("entry", _entry(entry))
        if entry.last_error:
            yield _line("last error", f"{entry.error_kind}: {entry.last_error}")
    if not seen.entries:
        yield _line("entry", "none")
    if seen.logged:
        yield _line("changed", "its change is in the log, not yet in the outbox")
    yield _line("next", seen.next)


def _line(title: str, value: str) -> Any:
    from rich.text import Text

    return Text.assemble((f"  {title:<12} ", "dim"), value)


def _short(digest: bytes | None) -> str:
    return f"{digest.hex()[:HASH_SHOWN]}…" if digest else "-"


def _stamp(stamp: StampSeen) -> str:
    same = "stale" if stamp.stale else "the same content"
    return f"hash {_short(stamp.content_hash)} by {stamp.target}, {ago(stamp.seconds)}: {same}"


def _outputs(outputs: Mapping[str, Any]) -> str:
    return " · ".join(
        f"{name} {count(value) if isinstance(value, int) else value}" for name, value in outputs.items()
    )


def _entry(entry: EntrySeen) -> str:
    parts = [f"{entry.state} for {age(entry.waited_seconds)}"]
    if entry.attempts:
        parts.append(f"{entry.attempts} failed attempts" if entry.attempts > 1 else "1 failed attempt")
    if entry.retry_seconds is not None:
        parts.append(f"next try in {age(entry.retry_seconds)}")
    if entry.discard_reason:
        parts.append(f"set aside: {entry.discard_reason}")
    return ", ".join(parts)
