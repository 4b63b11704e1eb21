"""Text Embeddings Inference: POST /embed, answered by a bare array or by {"embeddings": …}; GET /info."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from yarl import URL

from instep.errors import Outage
from instep.inference.answers import ArrayReader, Rows
from instep.inference.refusals import Refusal
from instep.inference.remote import Description
from instep.inference.transport import Transport


class TeiDialect:
    """`truncate` is always asked for, so TEI cuts long texts itself and does not say which."""

    default_batch = 32  # TEI's own default for max_client_batch_size

    def __init__(self) -> None:
        self._reader = ArrayReader()

    def endpoint(self, base: URL) -> URL:
        return base if base.path.endswith("/embed") else (base / "embed").with_query(base.query)

    def body(self, model: str, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"inputs": texts, "truncate": True})

    def read(self, answer: bytes, count: int) -> Rows:
        return self._reader.read(answer)

    def adapt(self, refusal: Refusal) -> bool:
        return False

    async def describe(self, transport: Transport) -> Description:
        """From /info, where it is there; raises Outage where nothing answers, as the request itself would."""
        base = transport.url
        page = (base.parent if base.path.endswith("/embed") else base) / "info"
        try:
            answer = await transport.get(page.with_query(base.query))
            said = orjson.loads(answer) if answer else {}
        except (orjson.JSONDecodeError, Outage):
            said = {}  # the request that follows says what is wrong
        if not isinstance(said, dict):
            said = {}
        model = said.get("model_id")
        return Description(
            model=model if isinstance(model, str) else None,
            batch=_positive(said.get("max_client_batch_size")),
            max_tokens=_positive(said.get("max_input_length")),
        )


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
