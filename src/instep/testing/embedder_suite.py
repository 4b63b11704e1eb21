"""What every Embedder must do. A test file makes one and awaits `check_embedder(embedder)`."""

from __future__ import annotations

import asyncio

import numpy as np

from instep.inference.ports import Embedded, Embedder

TEXTS = [
    "The cat sits on the mat.",
    "Quarterly revenue grew by nine percent.",
    "短い日本語の文。",
    "The cat sits on the mat.",
    "Ünïcödé, 🦀 and a\nnew line",
    "x " * 40,
]


async def check_embedder(embedder: Embedder) -> None:
    """All checks, one after another; each raises AssertionError with what was broken."""
    await check_probe_and_dimensions(embedder)
    await check_shape(embedder)
    await check_order(embedder)
    await check_empty(embedder)
    await check_many(embedder)
    await check_lone_surrogate(embedder)
    await check_cancellation(embedder)


async def check_probe_and_dimensions(embedder: Embedder) -> None:
    await embedder.probe()
    dimensions = await embedder.dimensions()
    assert dimensions > 0
    assert embedder.limits.dimensions == dimensions, "limits must know the dimensions once they are known"
    assert embedder.name, "a model without a name cannot be part of a target"
    assert embedder.limits.batch >= 1
    assert embedder.limits.concurrency >= 1


async def check_shape(embedder: Embedder) -> None:
    for urgent in (False, True):
        _sound(await embedder.embed(TEXTS, urgent=urgent), len(TEXTS), await embedder.dimensions())


async def check_order(embedder: Embedder) -> None:
    """The vector of a text does not depend on where it stands nor on what stands beside it."""
    forward = (await embedder.embed(TEXTS)).vectors
    backward = (await embedder.embed(TEXTS[::-1])).vectors[::-1]
    np.testing.assert_allclose(forward, backward, atol=1e-4)
    np.testing.assert_allclose(forward[0], forward[3], atol=1e-4)  # the same text twice
    alone = np.concatenate([(await embedder.embed([text])).vectors for text in TEXTS])
    np.testing.assert_allclose(forward, alone, atol=1e-4)
    assert not np.allclose(forward[0], forward[1], atol=1e-2), "two texts have one vector"


async def check_empty(embedder: Embedder) -> None:
    _sound(await embedder.embed([]), 0, await embedder.dimensions())


async def check_many(embedder: Embedder) -> None:
    """More texts than one request takes, also as a tuple."""
    texts = tuple(f"text {number}" for number in range(embedder.limits.batch + 3))
    _sound(await embedder.embed(texts[-40:]), len(texts[-40:]), await embedder.dimensions())
    if embedder.limits.batch <= 128:
        answer = await embedder.embed(texts)
        _sound(answer, len(texts), await embedder.dimensions())
        last = (await embedder.embed([texts[-1]])).vectors[0]
        np.testing.assert_allclose(answer.vectors[-1], last, atol=1e-4)


async def check_lone_surrogate(embedder: Embedder) -> None:
    """A text that is no Unicode fails alone."""
    answer = await embedder.embed(["good", "bad \ud800 text", "good"])
    assert set(answer.failures) == {1}
    assert not answer.vectors[1].any()
    np.testing.assert_allclose(answer.vectors[0], answer.vectors[2], atol=1e-4)
    assert answer.vectors[0].any()
    assert set((await embedder.embed(["\udfff"])).failures) == {0}


async def check_cancellation(embedder: Embedder) -> None:
    """A cancelled call ends as cancelled, and the embedder goes on working."""
    call = asyncio.create_task(embedder.embed(TEXTS * 3))
    await asyncio.sleep(0)
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("a cancelled call gave an answer")
    _sound(await embedder.embed(TEXTS[:2]), 2, await embedder.dimensions())


def _sound(answer: Embedded, count: int, dimensions: int) -> None:
    assert answer.vectors.shape == (count, dimensions)
    assert answer.vectors.dtype == np.float32
    assert np.isfinite(answer.vectors).all()
    assert not answer.failures
    assert answer.vectors.any(axis=1).all(), "a vector of zeros"
    assert all(0 <= index < count for index in answer.truncated)
