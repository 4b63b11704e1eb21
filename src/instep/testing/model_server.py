"""A real small HTTP model server: for tests with faults on demand, for the demo and the benchmark at full speed.

In a test: `async with ModelServer() as server: create_embedder("tei", url=server.url)`, then set the switches
(`server.status = 503`, `server.refuse = {"poison": 400}`, …) and read `server.requests` and `server.texts`.
As a process: `python -m instep.testing.model_server --port 0 --mode instant --shape tei` prints its address first.
Vectors are a function of the text alone (`vector_of`), so a test can compute what must have been stored.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from aiohttp import web

if TYPE_CHECKING:
    from instep.inference.ports import Embedder

SHAPES = ("tei", "tei-wrapped", "openai", "ollama")
PATHS = {"tei": "/embed", "tei-wrapped": "/embed", "openai": "/v1/embeddings", "ollama": "/api/embed"}
DIMENSIONS = 384
CHARACTERS_FOR_A_TOKEN = 4  # how this server counts tokens: rounded up


def vector_of(text: str, dimensions: int = DIMENSIONS) -> np.ndarray:
    """The unit vector that the server answers for `text`: float32 (dimensions,), seeded by its SHA-256."""
    seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    vector = np.random.default_rng(seed).standard_normal(dimensions)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@dataclass(slots=True)
class Faults:
    """The switches, all off at first; see ModelServer's attributes of the same names."""

    status: int | None = None  # answer this to everything (401, 404, 429, 500, 503)
    statuses: list[int] = field(default_factory=list)  # answered first, one by one (200: as usual)
    retry_after: str | None = None  # the header that goes with a status
    html: bool = False  # 200 with a page
    refuse: dict[str, int] = field(default_factory=dict)  # marker in a text → status of its whole request
    nan: str | None = None  # marker: that text's vector is all NaN ("" marks every text); likewise:
    null: str | None = None  # how Rust writes NaN
    infinite: str | None = None
    zeros: str | None = None
    empty: str | None = None  # []
    narrow: str | None = None  # one number too few
    too_few: bool = False  # one vector less than texts
    reverse: bool = False  # the wrong order; OpenAI's answer keeps the true index, so a client can tell
    lose_index: bool = False  # OpenAI: every index is 0
    body: bytes | None = None  # answer exactly this, 200
    drop: int = 0  # so many answers break off in the middle of the body
    max_batch: int | None = None  # texts in one request; more: 422, in TEI's words
    max_tokens: int | None = None  # of a whole request; more: 413 without a figure
    max_text_tokens: int | None = None  # of one text; more: 413 with the figures, in TEI's words
    slow: float = 0.0  # seconds for each text
    ignore_base64: bool = False
    refuse_base64: bool = False
    echo_key: bool = False  # 401s quote the key that was sent
    info: bool = True  # TEI's /info is there


class ModelServer:
    """An embeddings server on a loopback port of its own."""

    def __init__(
        self,
        shape: str = "tei",
        *,
        dimensions: int = DIMENSIONS,
        model_name: str = "instep/test-model",
        model: Embedder | None = None,
        port: int = 0,
    ) -> None:
        if shape not in SHAPES:
            raise ValueError(f"shape is one of {', '.join(SHAPES)}, not {shape!r}")
        self.shape = shape
        self.dimensions = dimensions
        self.model_name = model_name
        self.model = model  # real vectors instead of `vector_of`
        self.faults = Faults()
        self.port = port
        self.requests = 0  # of embeddings, refused ones included; none that found the server down
        self.infos = 0  # of TEI's /info
        self.texts: list[str] = []  # every text that came, in order of arrival, refused ones included
        self.batches: list[list[str]] = []  # the same by request
        self.headers: list[dict[str, str]] = []  # of each request, names in lower case
        self.bodies: list[dict[str, Any]] = []
        self.cancelled = 0  # requests whose client went away before the answer
        self.active = 0
        self.most_active = 0
        self._arrived = asyncio.Condition()
        self._release = asyncio.Event()
        self._release.set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        await self.stop()

    async def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        app = web.Application(client_max_size=2**28)
        app.router.add_post(PATHS[self.shape], self._embed)
        app.router.add_get("/info", self._info)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Down: connections are refused, and those that are open are closed."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def forget(self) -> None:
        """Empty the records; the switches stay."""
        self.requests = self.infos = self.cancelled = self.most_active = 0
        for records in (self.texts, self.batches, self.headers, self.bodies):
            records.clear()

    def mend(self) -> None:
        """All switches off; what is held is released."""
        self.faults = Faults()
        self.release()

    def hold(self) -> None:
        """Answer nothing until `release`."""
        self._release.clear()

    def release(self) -> None:
        self._release.set()

    @property
    def held(self) -> bool:
        return not self._release.is_set()

    async def arrived(self, requests: int = 1) -> None:
        """Return as soon as so many requests have come since the records were emptied."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.requests >= requests)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        texts = asked["inputs" if self.shape.startswith("tei") else "input"]
        texts = [texts] if isinstance(texts, str) else texts
        self.texts.extend(texts)
        self.batches.append(texts)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(asked)
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            async with self._arrived:
                self.requests += 1
                self._arrived.notify_all()
            await self._release.wait()
            if self.faults.slow:
                await asyncio.sleep(self.faults.slow * len(texts))
            return await self._answer(request, asked, texts)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    async def _answer(
        self, request: web.Request, asked: dict[str, Any], texts: list[str]
    ) -> web.StreamResponse:
        faults = self.faults
        if (refused := self._refused(request, asked, texts)) is not None:
            return refused
        if faults.html:
            return web.Response(
                text="<!doctype html><html><body>Sign in</body></html>", content_type="text/html"
            )
        if faults.body is not None:
            return web.Response(body=faults.body, content_type="application/json")
        if self.model is not None:
            vectors = list((await self.model.embed(texts)).vectors)
        else:
            vectors = [vector_of(text, self.dimensions) for text in texts]
        as_base64 = asked.get("encoding_format") == "base64" and not faults.ignore_base64
        rows = [self._row(text, vector) for text, vector in zip(texts, vectors, strict=True)]
        body = json.dumps(self._shaped(rows, as_base64)).encode()
        if faults.drop > 0:
            faults.drop -= 1
            response = web.StreamResponse(headers={"content-length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.Response(body=body, content_type="application/json")

    def _refused(
        self, request: web.Request, asked: dict[str, Any], texts: Sequence[str]
    ) -> web.Response | None:
        faults = self.faults
        status = faults.statuses.pop(0) if faults.statuses else faults.status
        if status is not None and status != 200:
            words = f"the server was told to answer {status}"
            if faults.echo_key:
                words = f"Incorrect API key provided: {request.headers.get('authorization')}"
            return self._error(status, words)
        if faults.refuse_base64 and "encoding_format" in asked:
            return self._error(400, "unknown field encoding_format")
        for marker, status in faults.refuse.items():
            if any(marker in text for text in texts):
                return self._error(status, f"text must not hold {marker}")
        if faults.max_batch is not None and len(texts) > faults.max_batch:
            return self._error(
                422, f"batch size {len(texts)} > maximum allowed batch size {faults.max_batch}"
            )
        counts = [tokens_of(text) for text in texts]
        if faults.max_text_tokens is not None and max(counts, default=0) > faults.max_text_tokens:
            return self._error(
                413, f"`inputs` must have less than {faults.max_text_tokens} tokens. Given: {max(counts)}"
            )
        if faults.max_tokens is not None and sum(counts) > faults.max_tokens:
            return self._error(413, "request too large")
        return None

    def _error(self, status: int, words: str) -> web.Response:
        said: dict[str, Any] = {"error": words, "error_type": "Validation"}
        if self.shape == "openai":
            said = {"error": {"message": words, "type": "invalid_request_error", "code": None}}
        headers = {"retry-after": self.faults.retry_after} if self.faults.retry_after else None
        return web.json_response(said, status=status, headers=headers)

    def _row(self, text: str, vector: np.ndarray) -> list[float | None]:
        def marked(marker: str | None) -> bool:
            return marker is not None and marker in text

        faults = self.faults
        row: list[float | None] = vector.tolist()
        if marked(faults.nan):
            return [float("nan")] * len(row)
        if marked(faults.infinite):
            return [float("inf"), *row[1:]]
        if marked(faults.null):
            return [None] * len(row)
        if marked(faults.zeros):
            return [0.0] * len(row)
        if marked(faults.empty):
            return []
        return row[:-1] if marked(faults.narrow) else row

    def _shaped(self, rows: list[list[float | None]], as_base64: bool) -> Any:
        faults = self.faults
        indexed = list(enumerate(rows))
        if faults.too_few:
            indexed.pop()
        if faults.reverse:
            indexed.reverse()
        if self.shape == "tei":
            return [row for _, row in indexed]
        if self.shape != "openai":
            return {"model": self.model_name, "embeddings": [row for _, row in indexed]}
        return {
            "object": "list",
            "model": self.model_name,
            "data": [
                {
                    "object": "embedding",
                    "index": 0 if faults.lose_index else index,
                    "embedding": base64.b64encode(np.array(row, dtype="<f4").tobytes()).decode()
                    if as_base64
                    else row,
                }
                for index, row in indexed
            ],
            "usage": {"prompt_tokens": 0, "total_tokens": 0},
        }

    async def _info(self, request: web.Request) -> web.Response:
        self.infos += 1
        if not self.faults.info or not self.shape.startswith("tei"):
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response(
            {
                "model_id": self.model_name,
                "max_client_batch_size": self.faults.max_batch or 32,
                "max_input_length": self.faults.max_text_tokens or 512,
            }
        )


def tokens_of(text: str) -> int:
    """Tokens as this server counts them."""
    return -(-len(text) // CHARACTERS_FOR_A_TOKEN)


async def _serve(arguments: argparse.Namespace) -> None:
    if arguments.mode == "instant":
        from instep.testing.instant_model import InstantModel

        server = await InstantModel.listen(arguments.shape, arguments.dimensions, arguments.port)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201
        await server.serve_forever()
        return
    model: Embedder | None = None
    if arguments.mode == "minilm":
        from instep.inference.minilm import MiniLM

        model = MiniLM(Path(arguments.cache_dir), threads=arguments.threads)
    async with ModelServer(
        arguments.shape, dimensions=arguments.dimensions, model=model, port=arguments.port
    ) as rich:
        print(rich.url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m instep.testing.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--mode", choices=("instant", "hash", "minilm"), default="hash")
    parser.add_argument("--shape", choices=SHAPES, default="tei")
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS)
    parser.add_argument("--cache-dir", default=".", help="minilm: where its graph is kept")
    parser.add_argument("--threads", type=int, default=0, help="minilm: 0 means all cores")
    import uvloop

    with suppress(KeyboardInterrupt):
        uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
