"""`instep dead`: what stopped being retried, and why; try it again, or set it aside."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep.cli.parameters import Key, Name, OptionalKey, OptionalName
from instep.clock import SYSTEM
from instep.console.command import Answer, Commands, Example
from instep.console.figures import age, count, plural
from instep.console.progress import key_text
from instep.console.session import Session

if TYPE_CHECKING:
    from instep.engine.dead import Letter

EXCERPT = 400  # characters of a row's text that `show` prints
commands = Commands("dead", help="Dead letters: what is no longer retried.")

KindOption = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help='Those of one kind: "input refused", lost, timeout, …'),
]


@commands.leaf(
    "list",
    [
        Example("instep dead list", "All dead letters, grouped by kind, the newest as an example."),
        Example("instep dead list packages.embed", "Those of one derivation."),
        Example('instep dead list packages --kind "input refused"', "One by one, those of a kind."),
    ],
)
async def list_(
    session: Session,
    name: OptionalName = None,
    kind: KindOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to list, with --kind.")] = 100,
) -> Answer:
    """List dead letters by kind.

    With --kind those of that kind, one by one.
    """
    from instep.console.terminal import grid

    async with session.app() as app:
        kinds = [one for one in await app.dead_kinds(name) if kind is None or one.kind == kind]
        names = sorted({one.derivation for one in kinds})
        letters = (
            [letter for one in names for letter in await app.dead_letters(one, kind, limit)] if kind else []
        )
    payload: dict[str, Any] = {
        "kinds": [
            {
                "kind": one.kind,
                "count": one.count,
                "name": one.derivation,
                "oldest": one.oldest.isoformat(),
                "example": {"key": _key(one.example_key), "error": one.example_error},
            }
            for one in kinds
        ]
    }
    if kind is not None:
        payload["letters"] = [_letter(one) for one in letters]
        rows = [[key_text(one.key), _since(one.failed_at), str(one.attempts), one.error] for one in letters]
        lines: list[Any] = [grid(rows, titles=("key", "age", "attempts", "error"), right=(1, 2), folds=3)]
        return Answer(payload, lines if letters else [f'no dead letters of the kind "{kind}"'])
    if not kinds:
        return Answer(payload, ["no dead letters"])
    rows = [
        [one.kind, count(one.count), _since(one.oldest), f"{one.derivation} {key_text(one.example_key)}: {one.example_error}"]
        for one in kinds
    ]  # fmt: skip
    first = kinds[0]
    key = f'"{key_text(first.example_key)}"'
    return Answer(
        payload,
        [grid(rows, titles=("kind", "count", "oldest", "example"), right=(1, 2), folds=3)],
        after=[
            f'instep dead show {first.derivation} {key} · instep dead replay {first.derivation} --kind "{first.kind}" · '
            f'instep dead discard {first.derivation} {key} --why "…"'
        ],
    )


@commands.leaf(
    "show",
    [Example("instep dead show packages.embed broken-one", "The error, and the row's text.")],
)
async def show(session: Session, name: Name, key: Key) -> Answer:
    """Show one row's dead letters.

    The error in full, and the beginning of the row's text as it is now. Letters that were discarded are shown too.
    """
    async with session.app() as app:
        letters, text = await app.dead_show(name, key)
    excerpt = text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
    lines: list[Any] = []
    for derivation, letter in letters:
        lines += [f"{derivation} {key}"]
        lines += [f"  {title:<12} {told}" for title, told in _told(letter)]
    lines.append(f"  {'text now':<12} {excerpt or 'the row has none, or is gone'}")
    return Answer(
        {
            "letters": [{"name": derivation, **_letter(letter)} for derivation, letter in letters],
            "text": excerpt,
        },
        lines,
        after=[f'instep dead replay {name} "{key}" · instep dead discard {name} "{key}" --why "…"'],
    )


@commands.leaf(
    "replay",
    [
        Example("instep dead replay packages.embed broken-one", "Try one row again."),
        Example('instep dead replay packages --kind "input refused"', "Try all of a kind again."),
        Example("instep dead replay --yes", "Try everything again, without being asked."),
    ],
)
async def replay(
    session: Session, name: OptionalName = None, key: OptionalKey = None, kind: KindOption = None
) -> Answer:
    """Let dead letters wait again.

    One row's, a kind's, or all; with all their attempts. A change of the row does the same by itself.
    """
    if (
        key is None
        and kind is None
        and not session.sure(f"Try all dead letters of {name or 'everything'} again?")
    ):
        return Answer({"replayed": 0}, ["nothing was changed"])
    async with session.app() as app:
        replayed = await app.dead_replay(name, key, kind)
    return Answer(
        {"replayed": replayed},
        [
            f"{plural(replayed, 'dead letter')} will be tried again"
            if replayed
            else "there was nothing to try again"
        ],
        after=[f"Next: instep run{' ' + name if name else ''}"] if replayed else [],
    )


@commands.leaf(
    "discard",
    [
        Example(
            'instep dead discard packages.embed broken-one --why "empty on purpose"', "Set one row aside."
        ),
        Example(
            'instep dead discard packages --kind "input refused" --why "scans" --yes', "Set a kind aside."
        ),
    ],
)
async def discard(
    session: Session,
    name: Name,
    why: Annotated[str, typer.Option("--why", metavar="REASON", help="Kept beside the letter.")],
    key: OptionalKey = None,
    kind: KindOption = None,
) -> Answer:
    """Set dead letters aside, with a reason.

    They are out of all counts until their rows change.
    """
    what = f"all of the kind {kind}" if kind else "all"
    if key is None and not session.sure(f"Discard {what} of {name}?"):
        return Answer({"discarded": 0}, ["nothing was changed"])
    async with session.app() as app:
        discarded = await app.dead_discard(why, name, key, kind)
    return Answer(
        {"discarded": discarded},
        [
            f"{plural(discarded, 'dead letter')} set aside until the row changes"
            if discarded
            else "there was nothing to set aside"
        ],
    )


def _key(key: tuple[Any, ...]) -> Any:
    """A key as JSON: the value, or an array of a composite one's."""
    return key[0] if len(key) == 1 else list(key)


def _letter(letter: Letter) -> dict[str, Any]:
    return {
        "key": _key(letter.key),
        "kind": letter.kind,
        "error": letter.error,
        "attempts": letter.attempts,
        "failed_at": letter.failed_at.isoformat(),
        "target": letter.target,
        "discarded_at": letter.discarded_at and letter.discarded_at.isoformat(),
        "discard_reason": letter.discard_reason,
    }


def _told(letter: Letter) -> Iterator[tuple[str, str]]:
    yield "kind", letter.kind
    yield "error", letter.error
    yield "attempts", count(letter.attempts)
    yield "since", f"{_since(letter.failed_at)} ({letter.failed_at:%Y-%m-%d %H:%M:%S} UTC)"
    yield "target", letter.target
    if letter.discarded_at is not None:
        yield "set aside", f"{_since(letter.discarded_at)} ago: {letter.discard_reason}"


def _since(moment: datetime) -> str:
    return age((SYSTEM.now() - moment).total_seconds())
