"""An embedder behind HTTP: texts into requests, requests into vectors. The servers' dialects are modules of their own.

The first final failure of a call cancels the call's other requests. A request that is too large for the server is
split and what was learned is remembered; a single text that is too large is cut, and counted as truncated.
Guarded by unit/test_inference_clients.py and unit/test_inference_failures.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from yarl import URL

from instep.errors import Configuration, Permanent
from instep.inference.answers import Rows, WrongShapeError, settle
from instep.inference.limit import Slot
from instep.inference.ports import Embedded, Limits, Measure
from instep.inference.refusals import Refusal, TooLarge, cut_length, too_large, unencodable
from instep.inference.transport import Transport

PROBE = "A harmless sentence, to see whether the model answers."
_CUTS = 20  # tries at one text that is too large
KEPT_BYTES = 32 * 1024 * 1024  # of vectors that calls which failed had been given
KEPT_CALLS = 20  # that had no use for any of them, until they are forgotten


@dataclass(frozen=True, slots=True)
class Description:
    """What a server says of itself; None where it does not say."""

    model: str | None = None
    batch: int | None = None
    max_tokens: int | None = None


class Dialect(Protocol):
    """How one kind of server is asked and how it answers."""

    default_batch: int

    def endpoint(self, base: URL) -> URL: ...

    def body(self, model: str, texts: Sequence[str]) -> bytes:
        """May raise TypeError for a text that is no Unicode."""
        ...

    def read(self, answer: bytes, count: int) -> Rows:
        """Raises WrongShapeError, or Permanent of kind "wrong answer"."""
        ...

    def adapt(self, refusal: Refusal) -> bool:
        """True: the dialect asks differently from now on, so ask again."""
        ...

    async def describe(self, transport: Transport) -> Description: ...


@dataclass(slots=True)
class _Part:
    vectors: np.ndarray
    failures: dict[int, Permanent]
    truncated: set[int]


@dataclass(slots=True)
class _Call:
    """One call of `embed`. `done`: what was answered of it so far."""

    urgent: bool = False
    tries: int | None = None
    done: list[tuple[Sequence[str], np.ndarray]] = field(default_factory=list)


class HttpEmbedder:
    """The Embedder over a dialect and a transport."""

    def __init__(
        self,
        dialect: Dialect,
        transport: Transport,
        *,
        model: str = "",
        batch: int | None = None,
        dimensions: int | None = None,
    ) -> None:
        self._dialect = dialect
        self._transport = transport
        self._endpoint = dialect.endpoint(transport.url)
        self._model = model
        self._asked_batch = batch
        self._batch = batch or dialect.default_batch
        self._dimensions = dimensions
        self._max_tokens: int | None = None
        self._characters: int | None = None  # of one request, learned from a refusal
        self._accepted: int | None = None  # characters that a refused text was accepted with
        self._kept: dict[str, np.ndarray] = {}  # vectors of calls that failed, by text
        self._unused = 0  # calls since one of them was of use
        self._described = False
        self._describing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._model

    @property
    def limits(self) -> Limits:
        return Limits(self._batch, self._transport.limit.highest, self._max_tokens, self._dimensions)

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embedded:
        if urgent:
            self._transport.limit.interactive()
            return await self._embed(texts, _Call(urgent=True))
        call = _Call()
        try:
            return await self._with_kept(texts, call)
        except BaseException:
            self._keep(call)
            raise

    async def probe(self) -> None:
        answer = await self._embed([PROBE], _Call(urgent=True, tries=2))
        for failure in answer.failures.values():
            raise failure

    async def dimensions(self) -> int:
        if self._dimensions is None:
            await self.probe()
        if not self._model:
            raise Configuration(
                f"the model server at {self._transport.address} does not say which model it has",
                setting="INSTEP_EMBED_MODEL",
                hint="set INSTEP_EMBED_MODEL to its name",
            )
        assert self._dimensions is not None  # the probe's answer settled it
        return self._dimensions

    def measure(self) -> Measure | None:
        return None

    async def close(self) -> None:
        await self._transport.close()

    async def _embed(self, texts: Sequence[str], call: _Call) -> Embedded:
        if not self._described:
            await self._describe()
        if not texts:
            return Embedded(np.zeros((0, self._dimensions or 0), dtype=np.float32), {}, frozenset())
        try:
            part = await self._pieces(texts, call)
        except TypeError:  # from the encoder of the body
            failures = unencodable(texts)
            if not failures:
                raise
            part = await self._without(texts, failures, call)
        return Embedded(part.vectors, part.failures, part.truncated)

    async def _with_kept(self, texts: Sequence[str], call: _Call) -> Embedded:
        """Texts that were answered within a call that failed are not sent again."""
        kept = self._kept
        known = {index: kept.pop(text) for index, text in enumerate(texts) if text in kept} if kept else {}
        if not known:
            self._unused += 1
            if kept and self._unused > KEPT_CALLS:
                kept.clear()
            return await self._embed(texts, call)
        self._unused = 0
        call.done.append(([texts[index] for index in known], np.stack(list(known.values()))))
        rest = [index for index in range(len(texts)) if index not in known]
        asked = await self._embed([texts[index] for index in rest], call)
        width = next(iter(known.values())).size
        if rest and asked.vectors.shape[1] != width:  # the server has another model since
            return await self._embed(texts, call)
        vectors = np.empty((len(texts), width), dtype=np.float32)
        vectors[list(known)], vectors[rest] = list(known.values()), asked.vectors
        failures = {rest[index]: failure for index, failure in asked.failures.items()}
        return Embedded(vectors, failures, {rest[index] for index in asked.truncated})

    def _keep(self, call: _Call) -> None:
        self._unused = 0
        for texts, vectors in call.done:
            if (len(self._kept) + len(texts)) * vectors[0].nbytes > KEPT_BYTES:
                return
            self._kept.update(zip(texts, vectors, strict=True))

    async def _pieces(self, texts: Sequence[str], call: _Call) -> _Part:
        """All requests of a call, at once as far as the limit lets them."""
        bounds = self._split(texts)
        if len(bounds) == 1:
            return await self._piece(texts, call)
        parts = await all_or_first_failure(
            [partial(self._piece, texts[begin:end], call) for begin, end in bounds]
        )
        return self._joined(parts)

    async def _piece(self, texts: Sequence[str], call: _Call) -> _Part:
        """One request; more where the limit lets it have fewer texts, or the server finds it too large."""
        part, count = await self._request(texts, call)
        if count == len(texts):
            return part
        parts, begin = [part], count
        while begin < len(texts):
            part, count = await self._request(texts[begin:], call)
            parts.append(part)
            begin += count
        return self._joined(parts)

    async def _request(self, texts: Sequence[str], call: _Call) -> tuple[_Part, int]:
        """As many of the first texts as the limit lets one request have now, and how many those were."""
        try:
            async with self._transport.limit.slot(len(texts), urgent=call.urgent) as slot:
                if slot.texts < len(texts):
                    texts = texts[: slot.texts]
                answer = await self._ask(texts, slot, call)
        except Refusal as refusal:
            return await self._refused(texts, refusal, call), len(texts)
        part = self._settled(answer, len(texts))
        if not call.urgent and not part.failures:
            call.done.append((texts, part.vectors))
        return part, len(texts)

    async def _refused(self, texts: Sequence[str], refusal: Refusal, call: _Call) -> _Part:
        size = too_large(refusal)
        if size is None:
            raise refusal
        if len(texts) == 1:
            return await self._shortened(texts[0], size, refusal, call)
        self._learn(texts, size)
        bounds = self._split(texts)
        if len(bounds) == 1:  # what was learned meanwhile says it fits: it does not
            middle = len(texts) // 2
            bounds = [(0, middle), (middle, len(texts))]
        return self._joined([await self._piece(texts[begin:end], call) for begin, end in bounds])

    async def _ask(self, texts: Sequence[str], slot: Slot, call: _Call) -> bytes:
        for last in (False, True):
            body = self._dialect.body(self._model, texts)
            try:
                return await self._transport.post(
                    self._endpoint, body, slot, tries=call.tries, patient=not call.urgent
                )
            except Refusal as refusal:
                if last or not self._dialect.adapt(refusal):
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _shortened(self, text: str, size: TooLarge, refusal: Refusal, call: _Call) -> _Part:
        for _ in range(_CUTS):
            length = cut_length(len(text), size, self._accepted)
            if length < 1:
                break
            text = text[:length]
            try:
                async with self._transport.limit.slot(1, urgent=call.urgent) as slot:
                    part = self._settled(await self._ask([text], slot, call), 1)
            except Refusal as again:
                more = too_large(again)
                if more is None:
                    raise
                size, refusal = more, again
                continue
            self._accepted = length
            part.truncated.add(0)
            return part
        raise Permanent(
            f"too large for the model however short: {refusal}", kind="input too large"
        ) from refusal

    def _settled(self, answer: bytes, count: int) -> _Part:
        try:
            vectors, failures = settle(self._dialect.read(answer, count), count, self._dimensions)
        except WrongShapeError:
            raise self._transport.wrong_shape(answer) from None
        if self._dimensions is None and vectors.shape[1]:
            self._dimensions = vectors.shape[1]
        return _Part(vectors, failures, set())

    def _learn(self, texts: Sequence[str], size: TooLarge) -> None:
        if size.batch is not None and size.batch < len(texts):
            self._batch = min(self._batch, size.batch)
        else:
            half = max(1, sum(map(len, texts)) // 2)
            self._characters = min(self._characters or half, half)

    def _split(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Where requests begin and end: by count, and by characters once a server has refused more."""
        count, step = len(texts), self._batch
        if self._characters is None:
            return [(begin, min(begin + step, count)) for begin in range(0, count, step)]
        bounds, begin, held = [], 0, 0
        for index, text in enumerate(texts):
            if index > begin and (index - begin == step or held + len(text) > self._characters):
                bounds.append((begin, index))
                begin, held = index, 0
            held += len(text)
        return [*bounds, (begin, count)]

    def _joined(self, parts: Sequence[_Part]) -> _Part:
        width = self._dimensions or 0
        vectors = [
            # an answer of nothing but empty vectors, before the dimension was known
            p.vectors if p.vectors.shape[1] == width else np.zeros((len(p.vectors), width), dtype=np.float32)
            for p in parts
        ]
        failures: dict[int, Permanent] = {}
        truncated: set[int] = set()
        begin = 0
        for part in parts:
            failures.update((begin + index, failure) for index, failure in part.failures.items())
            truncated.update(begin + index for index in part.truncated)
            begin += len(part.vectors)
        return _Part(np.concatenate(vectors), failures, truncated)

    async def _without(self, texts: Sequence[str], failures: dict[int, Permanent], call: _Call) -> _Part:
        kept = [index for index in range(len(texts)) if index not in failures]
        vectors = np.zeros((len(texts), self._dimensions or 0), dtype=np.float32)
        truncated: set[int] = set()
        if kept:
            part = await self._pieces([texts[index] for index in kept], call)
            vectors = np.zeros((len(texts), part.vectors.shape[1]), dtype=np.float32)
            vectors[kept] = part.vectors
            failures |= {kept[index]: failure for index, failure in part.failures.items()}
            truncated = {kept[index] for index in part.truncated}
        return _Part(vectors, failures, truncated)

    async def _describe(self) -> None:
        """Ask the server once for its model and limits; one that is not there is asked again next time."""
        async with self._describing:
            if self._described:
                return
            said = await self._dialect.describe(self._transport)
            if self._model and said.model and not _same_model(self._model, said.model):
                raise Configuration(
                    f"the model server at {self._transport.address} has the model {said.model}, "
                    f"not {self._model}",
                    setting="INSTEP_EMBED_MODEL",
                    hint="vectors of two models must not be mixed: set INSTEP_EMBED_URL to the right server",
                )
            self._model = self._model or said.model or ""
            self._max_tokens = said.max_tokens
            if said.batch:
                self._batch = min(self._asked_batch or said.batch, said.batch)
            self._described = True


def _same_model(wanted: str, found: str) -> bool:
    """By the last part of the name; a server that was started from a snapshot's path does not know its name."""
    wanted, found = (name.rstrip("/").rsplit("/", 1)[-1].casefold() for name in (wanted, found))
    snapshot = len(found) == 40 and all(c in "0123456789abcdef" for c in found)
    return snapshot or wanted == found


async def all_or_first_failure(calls: Sequence[Callable[[], Coroutine[Any, Any, _Part]]]) -> list[_Part]:
    """The results of all; the first that fails cancels the others and is raised itself.

    No TaskGroup: one that is cancelled while a task of it fails raises the failure and forgets the cancellation, and
    SIGTERM would look like an item's failure."""
    tasks = [asyncio.create_task(call()) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]
