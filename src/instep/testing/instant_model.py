"""A model server that answers at once: the benchmark's, the same for every contestant.

It writes HTTP by hand and has its vectors as text beforehand, so that what is measured is the client. A text's
vector is one of 64, chosen by its CRC-32: `instant_vector_of` says which, so stored vectors can be checked.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from functools import cache, partial
from typing import Any

import numpy as np
import orjson

_COUNT = 64


@cache
def _vectors(dimensions: int) -> np.ndarray:
    """float32 (64, dimensions), unit length, with the six decimals that are sent."""
    raw = np.random.default_rng(20_240_601).standard_normal((_COUNT, dimensions))
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    return np.round(raw, 6).astype(np.float32)


def instant_vector_of(text: str, dimensions: int = 384) -> np.ndarray:
    """The vector that an instant server answers for `text`, float32."""
    vector: np.ndarray = _vectors(dimensions)[zlib.crc32(text.encode()) % _COUNT]
    return vector


@cache
def _written(dimensions: int) -> tuple[list[bytes], list[bytes]]:
    """Each vector as JSON numbers and as base64 in quotes."""
    vectors = _vectors(dimensions)
    numbers = [b"[" + b",".join(b"%.6f" % value for value in vector.tolist()) + b"]" for vector in vectors]
    texts = [b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"' for vector in vectors]
    return numbers, texts


class InstantModel(asyncio.Protocol):
    """One connection. POST anything with "inputs" or "input"; GET answers 404."""

    def __init__(self, shape: str, dimensions: int) -> None:
        self._shape = shape
        self._numbers, self._base64 = _written(dimensions)
        self._buffer = b""
        self._transport: Any = None

    @staticmethod
    async def listen(shape: str = "tei", dimensions: int = 384, port: int = 0) -> asyncio.Server:
        """A server on a loopback port; its address is in `.sockets[0].getsockname()`."""
        _written(dimensions)
        return await asyncio.get_running_loop().create_server(
            partial(InstantModel, shape, dimensions), "127.0.0.1", port
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = (
                int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            )
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            if head.startswith(b"post"):
                self._send(b"200 OK", self._answer(orjson.loads(body)))
            else:
                self._send(b"404 Not Found", b"{}")

    def _send(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)

    def _answer(self, asked: dict[str, Any]) -> bytes:
        texts = asked.get("inputs") or asked.get("input") or []
        texts = [texts] if isinstance(texts, str) else texts
        written = self._base64 if asked.get("encoding_format") == "base64" else self._numbers
        rows = [written[zlib.crc32(text.encode()) % _COUNT] for text in texts]
        if self._shape == "tei":
            return b"[" + b",".join(rows) + b"]"
        if self._shape == "openai":
            items = [b'{"index":%d,"embedding":%b}' % item for item in enumerate(rows)]
            return b'{"object":"list","data":[' + b",".join(items) + b"]}"
        return b'{"embeddings":[' + b",".join(rows) + b"]}"
