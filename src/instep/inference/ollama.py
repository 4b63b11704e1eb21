"""Ollama: POST /api/embed, answered by {"embeddings": …}."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from yarl import URL

from instep.inference.answers import ArrayReader, Rows
from instep.inference.refusals import Refusal
from instep.inference.remote import Description
from instep.inference.transport import Transport


class OllamaDialect:
    """`truncate` is always asked for, so Ollama cuts long texts itself and does not say which."""

    default_batch = 32

    def __init__(self) -> None:
        self._reader = ArrayReader()

    def endpoint(self, base: URL) -> URL:
        if base.path.endswith("/api/embed"):
            return base
        return (base / "embed" if base.path.endswith("/api") else base / "api" / "embed").with_query(
            base.query
        )

    def body(self, model: str, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"model": model, "input": texts, "truncate": True})

    def read(self, answer: bytes, count: int) -> Rows:
        return self._reader.read(answer)

    def adapt(self, refusal: Refusal) -> bool:
        return False

    async def describe(self, transport: Transport) -> Description:
        return Description()
