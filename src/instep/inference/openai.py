"""Servers with OpenAI's interface: POST …/embeddings, vectors in base64 where the server can."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from yarl import URL

from instep.inference.answers import Rows, WrongShapeError, indexed
from instep.inference.refusals import Refusal
from instep.inference.remote import Description
from instep.inference.transport import Transport


class OpenAIDialect:
    """Asks for base64 (a quarter of the parsing); takes numbers where a server ignores or refuses that."""

    default_batch = 128

    def __init__(self) -> None:
        self._base64 = True

    def endpoint(self, base: URL) -> URL:
        """…/v1 and any other path get /embeddings; a bare host gets /v1/embeddings."""
        if base.path.endswith("/embeddings"):
            return base
        page = base / "embeddings" if base.path not in ("", "/") else base / "v1" / "embeddings"
        return page.with_query(base.query)

    def body(self, model: str, texts: Sequence[str]) -> bytes:
        request: dict[str, object] = {"model": model, "input": texts}
        if self._base64:
            request["encoding_format"] = "base64"
        return orjson.dumps(request)

    def read(self, answer: bytes, count: int) -> Rows:
        try:
            said = orjson.loads(answer)
        except orjson.JSONDecodeError:
            said = _with_nan(answer)
        if not isinstance(said, dict):
            raise WrongShapeError
        return indexed(said.get("data"), count)

    def adapt(self, refusal: Refusal) -> bool:
        if self._base64 and ("encoding_format" in refusal.words or "base64" in refusal.words):
            self._base64 = False
            return True
        return False

    async def describe(self, transport: Transport) -> Description:
        return Description()


def _with_nan(answer: bytes) -> object:
    """NaN and Infinity are no JSON, but servers in Python write them: only that vector is to fail."""
    import json

    try:
        return json.loads(answer)
    except ValueError as error:
        raise WrongShapeError from error
