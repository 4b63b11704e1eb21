"""A model server as TEI is, as a process: first come first served, one after another, a bounded queue (429 beyond it).

`python -m benchmarks.shared_model paced`: each text takes 0.09 s, what the reference measured for one query.
`python -m benchmarks.shared_model minilm DIRECTORY`: a real all-MiniLM-L6-v2. It prints its port and ends with stdin.
GET /seen: what was answered since the last look: [texts, seconds of waiting, seconds of work] of each request.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import orjson
import uvloop
from aiohttp import web

from benchmarks import processes
from instep.testing.instant_model import instant_vector_of

QUERY_SECONDS = 0.09  # of the reference's server, idle
QUEUE = 512  # TEI's own default (max_concurrent_requests)
LARGEST = 32  # likewise (max_client_batch_size)


@dataclass(frozen=True, slots=True)
class Answered:
    texts: int
    waited: float
    worked: float


@dataclass(frozen=True, slots=True)
class SharedModel:
    """The running server, as the one who started it sees it."""

    url: str

    async def seen(self) -> list[Answered]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/seen") as response:
            return [Answered(*row) for row in orjson.loads(await response.read())]


@asynccontextmanager
async def started(mode: str, *more: str) -> AsyncIterator[SharedModel]:
    process = await asyncio.create_subprocess_exec(
        *processes.python("benchmarks.shared_model", mode, *more), cwd=processes.ROOT, env=processes.environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield SharedModel(f"http://127.0.0.1:{int(await process.stdout.readline())}")
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


class _Server:
    def __init__(self, mode: str, directory: Path | None) -> None:
        self._turn, self._held, self._seen = asyncio.Lock(), 0, list[tuple[int, float, float]]()
        self._model = None
        if mode == "minilm":
            from instep.inference.minilm import MiniLM

            assert directory is not None
            self._model = MiniLM(directory)

    async def embed(self, request: web.Request) -> web.Response:
        texts = orjson.loads(await request.read())["inputs"]
        if self._held >= QUEUE:
            return web.json_response({"error": "Model is overloaded", "error_type": "overloaded"}, status=429)
        self._held += 1
        arrived = time.monotonic()
        try:
            async with self._turn:  # asyncio's locks are fair
                began = time.monotonic()
                vectors = await self._work(texts)
        finally:
            self._held -= 1
        self._seen.append((len(texts), began - arrived, time.monotonic() - began))
        return web.Response(body=orjson.dumps(vectors), content_type="application/json")

    async def _work(self, texts: Sequence[str]) -> list[list[float]]:
        if self._model is None:
            await asyncio.sleep(QUERY_SECONDS * len(texts))
            vectors = np.stack([instant_vector_of(text) for text in texts])
        else:
            vectors = (await self._model.embed(texts)).vectors
        return [row.tolist() for row in vectors]

    async def info(self, _: web.Request) -> web.Response:
        said = {"model_id": "instant", "max_client_batch_size": LARGEST, "max_input_length": 256}
        return web.json_response(said)

    async def seen(self, _: web.Request) -> web.Response:
        seen, self._seen = self._seen, []
        return web.Response(body=orjson.dumps(seen), content_type="application/json")

    async def run(self) -> None:
        if self._model is not None:
            await self._model.probe()
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/embed", self.embed)
        app.router.add_get("/info", self.info)
        app.router.add_get("/seen", self.seen)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.get_running_loop().run_in_executor(
            None, sys.stdin.read
        )  # until whoever started it ends
        await runner.cleanup()


async def _serve() -> None:
    await _Server(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None).run()


if __name__ == "__main__":
    uvloop.run(_serve())
