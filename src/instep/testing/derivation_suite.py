"""What every Derivation and its Sink must do: the conformance suite of `engine.ports`.

A test makes a `Harness` and awaits `check_derivation(harness)`. Everything is driven through the ports; what only the
derivation's owner knows (how a row is written, where an output is read) is in the harness. The engine's own part, stamps
and entries, is not looked at.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from psycopg.pq import TransactionStatus

from instep.database.transactions import transaction
from instep.engine.declaration import Key, Target
from instep.engine.ports import Conn, Derivation, Item, Output
from instep.errors import InstepError, Permanent

TEXTS = ("apple pear", "quince", "medlar plum", "sloe", "damson", "")
"""What the suite writes into rows: short, each word in one text alone, the last without any output worth the name."""
WORDS = tuple(word for text in TEXTS for word in text.split())
_LOADS = 40  # while a row is changed all the time


class Harness(Protocol):
    """`keys`: at least four, none of which has a row at first, in no particular order. `refused`: a text that fails
    for good; None where no text does. `expected`: what `read` gives of an entity with that text, None where it then is
    not in it."""

    @property
    def conn(self) -> Conn: ...
    @property
    def derivation(self) -> Derivation: ...
    @property
    def target(self) -> Target: ...
    @property
    def keys(self) -> Sequence[Key]: ...
    @property
    def refused(self) -> str | None: ...
    async def put(self, texts: Mapping[Key, str]) -> None:
        """Insert or update eligible rows with these texts, on a connection that is not `conn`."""
        ...

    async def hide(self, key: Key) -> None:
        """Make a row not eligible any more."""
        ...

    async def clear(self) -> None:
        """Delete all rows."""
        ...

    async def read(self) -> Mapping[Key, Any]:
        """All outputs of the target that a reader sees, in a form that compares equal; none where it was dropped."""
        ...

    def expected(self, text: str) -> Any: ...


class _Rolled(Exception):
    """Leaves a transaction."""


async def check_derivation(harness: Harness) -> None:
    """All checks, one after another, each on a target made anew."""
    await harness.derivation.sink.drop(harness.conn, harness.target)  # was never made
    for check in CHECKS:
        await _anew(harness)
        await check(harness)


async def check_prepare_finish_and_drop_again(harness: Harness) -> None:
    """Each is safe to call twice; an output stands through the first two, and is gone after the third."""
    sink, conn, target = harness.derivation.sink, harness.conn, harness.target
    await _make(harness, {harness.keys[0]: TEXTS[0]})
    before = await harness.read()
    for _ in range(2):
        await sink.prepare(conn, target)
        await sink.finish(conn, target)
        assert await sink.intact(conn, target)
        assert await harness.read() == before == _expected(harness, {harness.keys[0]: TEXTS[0]})
    for _ in range(2):
        await sink.drop(conn, target)
        assert await harness.read() == {}
    await sink.prepare(conn, target)
    await _make(harness, {harness.keys[0]: TEXTS[0]})
    assert await harness.read() == before


async def check_load(harness: Harness) -> None:
    """Items of the eligible rows alone; the hash depends on the content and on nothing else."""
    first, second, hidden, absent = harness.keys[:4]
    await harness.put({first: TEXTS[0], second: TEXTS[1], hidden: TEXTS[2]})
    await harness.hide(hidden)
    items = await _load(harness, [absent, first, hidden, second])
    assert set(items) == {first, second}
    assert items[first].hash != items[second].hash
    assert await _load(harness, [second, first]) == items, "the same rows gave other content or another hash"
    await harness.put({first: TEXTS[1]})
    assert (await _load(harness, [first]))[first].hash == items[second].hash
    assert await _load(harness, []) == {}
    await harness.clear()
    assert await _load(harness, [first, second]) == {}


async def check_load_is_one_snapshot(harness: Harness) -> None:
    """While a row is being changed, each load gives the hash of the content that it gives."""
    key, known = harness.keys[0], {}
    for text in TEXTS[:2]:
        await harness.put({key: text})
        item = (await _load(harness, [key]))[key]
        known[item.hash] = item.content
    stopped = asyncio.Event()

    async def change() -> None:
        while not stopped.is_set():
            for text in TEXTS[:2]:
                await harness.put({key: text})

    task = asyncio.create_task(change())
    try:
        seen: Counter[bytes] = Counter()
        while seen.total() < _LOADS or (len(seen) < 2 and seen.total() < 50 * _LOADS):
            item = (await _load(harness, [key]))[key]
            assert known[item.hash] == item.content
            seen[item.hash] += 1
        assert len(seen) == 2, "a load does not see what was written"
    finally:
        stopped.set()
        await task


async def check_stamped(harness: Harness) -> None:
    """A row whose hash is stamped is still there, as an item with that hash: one that were missing would be cleared."""
    first, second = harness.keys[:2]
    await harness.put({first: TEXTS[0], second: TEXTS[1]})
    items = await _load(harness, [first, second])
    again = await _load(harness, [first, second], {first: items[first].hash, second: b"other content"})
    assert {key: item.hash for key, item in again.items()} == {key: item.hash for key, item in items.items()}
    assert again[second].content == items[second].content


async def check_compute(harness: Harness) -> None:
    """One result for each item, in its place, with its key and its hash; the same texts twice, and none at all."""
    keys = harness.keys[:4]
    await harness.put(dict(zip(keys, (TEXTS[0], TEXTS[1], TEXTS[0], TEXTS[-1]), strict=True)))
    loaded = await _load(harness, keys)
    for order in (keys, keys[::-1]):
        items = [loaded[key] for key in order]
        outputs = _outputs(await harness.derivation.compute(harness.target, items))
        assert [(output.key, output.hash) for output in outputs] == [(item.key, item.hash) for item in items]
    assert list(await harness.derivation.compute(harness.target, [])) == []


async def check_bad_item(harness: Harness) -> None:
    """A Permanent in the place of the item that is bad, and its neighbours are made; where it is not known which is bad,
    the wave fails with an error of `instep.errors`, and the bad one alone with a Permanent."""
    if harness.refused is None:
        return
    first, bad, last = harness.keys[:3]
    texts = {first: TEXTS[0], bad: harness.refused, last: TEXTS[1]}
    await harness.put(texts)
    loaded = await _load(harness, list(texts))
    items = [loaded[key] for key in texts]
    try:
        results = list(await harness.derivation.compute(harness.target, items))
    except InstepError:
        results = [await _alone(harness, item) for item in items]
    assert [isinstance(result, Permanent) for result in results] == [False, True, False]
    await _write(harness, [], [result for result in results if isinstance(result, Output)])
    assert await harness.read() == _expected(harness, {first: TEXTS[0], last: TEXTS[1]})


async def check_write(harness: Harness) -> None:
    """Replaces what an entity had, the empty set included; twice is once; what was never there can be removed."""
    first, second, third, absent = harness.keys[:4]
    texts = {first: TEXTS[0], second: TEXTS[1], third: TEXTS[2]}
    outputs = await _make(harness, texts)
    assert await harness.read() == _expected(harness, texts)
    for _ in range(2):
        await _write(harness, [], outputs)
        assert await harness.read() == _expected(harness, texts)
    await _write(harness, [], [])
    assert await harness.read() == _expected(harness, texts)

    changed = {first: TEXTS[3], second: TEXTS[-1]}
    await harness.put(changed)
    outputs = await _computed(harness, list(changed))
    for _ in range(2):
        await _write(harness, [third, absent], outputs)
        assert await harness.read() == _expected(harness, changed)
    await _write(harness, list(harness.keys), [])
    assert await harness.read() == {}
    assert await harness.derivation.sink.intact(harness.conn, harness.target)


async def check_write_never_commits(harness: Harness) -> None:
    """The engine does: what is rolled back never was, or (outside PostgreSQL) can be written again."""
    sink, conn, (first, second) = harness.derivation.sink, harness.conn, harness.keys[:2]
    await _make(harness, {first: TEXTS[0]})
    before = await harness.read()
    await harness.put({first: TEXTS[3], second: TEXTS[1]})
    outputs = await _computed(harness, [first, second])
    try:
        async with transaction(conn):
            await sink.write(conn, harness.target, [], outputs)
            assert conn.info.transaction_status == TransactionStatus.INTRANS
            raise _Rolled
    except _Rolled:
        pass
    if sink.transactional:
        assert await harness.read() == before
    assert await sink.intact(conn, harness.target)
    await _write(harness, [], outputs)
    assert await harness.read() == _expected(harness, {first: TEXTS[3], second: TEXTS[1]})


async def check_probe(harness: Harness) -> None:
    """Raises nothing where all is well, and leaves nothing behind."""
    await _make(harness, {harness.keys[0]: TEXTS[0]})
    before = await harness.read()
    for _ in range(2):
        await harness.derivation.probe(harness.target)
    assert await harness.read() == before


CHECKS = (
    check_prepare_finish_and_drop_again,
    check_load,
    check_load_is_one_snapshot,
    check_stamped,
    check_compute,
    check_bad_item,
    check_write,
    check_write_never_commits,
    check_probe,
)


async def _anew(harness: Harness) -> None:
    sink = harness.derivation.sink
    await harness.clear()
    await sink.drop(harness.conn, harness.target)
    await sink.prepare(harness.conn, harness.target)
    assert await sink.intact(harness.conn, harness.target)
    assert await harness.read() == {}


async def _make(harness: Harness, texts: Mapping[Key, str]) -> list[Output]:
    await harness.put(texts)
    outputs = await _computed(harness, list(texts))
    await _write(harness, [], outputs)
    return outputs


async def _load(
    harness: Harness, keys: Sequence[Key], stamped: Mapping[Key, bytes] | None = None
) -> dict[Key, Item]:
    loaded = await harness.derivation.load(harness.conn, harness.target, keys, stamped or {})
    assert not loaded.deferred, "short texts were put off"
    items = {item.key: item for item in loaded.items}
    assert len(items) == len(loaded.items), "a key was loaded twice"
    assert set(items) <= set(keys)
    return items


async def _computed(harness: Harness, keys: Sequence[Key]) -> list[Output]:
    loaded = await _load(harness, keys)
    return _outputs(await harness.derivation.compute(harness.target, [loaded[key] for key in keys]))


async def _alone(harness: Harness, item: Item) -> Output | Permanent:
    try:
        [result] = await harness.derivation.compute(harness.target, [item])
    except Permanent as error:
        return error
    return result


def _outputs(results: Sequence[Output | Permanent]) -> list[Output]:
    outputs = [result for result in results if isinstance(result, Output)]
    assert len(outputs) == len(results), f"a good text was refused: {results}"
    return outputs


async def _write(harness: Harness, removed: Sequence[Key], outputs: Sequence[Output]) -> None:
    async with transaction(harness.conn):
        await harness.derivation.sink.write(harness.conn, harness.target, removed, outputs)


def _expected(harness: Harness, texts: Mapping[Key, str]) -> dict[Key, Any]:
    values = {key: harness.expected(text) for key, text in texts.items()}
    return {key: value for key, value in values.items() if value is not None}
