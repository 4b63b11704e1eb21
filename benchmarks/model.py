"""The model server of every contestant, as a process: `python -m benchmarks.model` prints its ports and ends with stdin.

It is `instep.testing.instant_model` on uvloop, which answers at once: at 32 texts a request in about 0.1 ms, most of
it for reading the request and copying the answer. The same process speaks two dialects on two ports, TEI's (a bare
array) and Ollama's. A third port answers each connection with {"requests", "texts", "first", "last"}: what came since
the last look, with the times of the first and the last request in seconds since the epoch; looking forgets it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import orjson
import uvloop

from benchmarks import processes
from instep.testing.instant_model import InstantModel, instant_vector_of

DIMENSIONS = 384


def expected(texts: Sequence[str]) -> np.ndarray:
    """The server's vectors of `texts`, float32 (n, 384)."""
    return np.stack([instant_vector_of(text, DIMENSIONS) for text in texts])


class Model:
    """The running server, as the one who started it sees it."""

    def __init__(self, tei: int, ollama: int, seen: int) -> None:
        self.url = f"http://127.0.0.1:{tei}"
        self.ollama_url = f"http://127.0.0.1:{ollama}"
        self._seen = seen

    async def seen(self) -> dict[str, float]:
        """What came since the last call."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._seen)
        try:
            return dict(orjson.loads(await reader.read()))
        finally:
            writer.close()


@asynccontextmanager
async def started() -> AsyncIterator[Model]:
    """The server in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *processes.python("benchmarks.model"), cwd=processes.ROOT, env=processes.environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        ports = [int(port) for port in (await process.stdout.readline()).split()]
        yield Model(*ports)
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


class _Seen:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.requests = self.texts = 0
        self.first = self.last = 0.0

    async def tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = ("requests", "texts", "first", "last")
        writer.write(orjson.dumps({name: getattr(self, name) for name in names}))
        self.forget()
        await writer.drain()
        writer.close()


class _Noted(InstantModel):
    def __init__(self, seen: _Seen, shape: str) -> None:
        super().__init__(shape, DIMENSIONS)
        self._seen = seen

    def _answer(self, asked: dict[str, Any]) -> bytes:
        seen, texts = self._seen, asked.get("inputs") or asked.get("input") or ()
        if texts:
            seen.last = time.time()
            seen.first = seen.first or seen.last
            seen.requests += 1
            seen.texts += 1 if isinstance(texts, str) else len(texts)
        answer = super()._answer(asked)
        return _OLLAMA + answer[1:] if self._shape == "ollama" else answer


# Ollama's clients read the count of tokens and, from /api/show, what the model is: pgai's does not work without.
_OLLAMA = b'{"model":"instant","prompt_eval_count":1,"model_info":{},'


async def _serve() -> None:
    seen, loop = _Seen(), asyncio.get_running_loop()
    servers = [
        await loop.create_server(partial(_Noted, seen, shape), "127.0.0.1", 0) for shape in ("tei", "ollama")
    ]
    servers.append(await asyncio.start_server(seen.tell, "127.0.0.1", 0))
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until whoever started it ends


if __name__ == "__main__":
    uvloop.run(_serve())
