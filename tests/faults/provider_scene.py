"""Hours pass over a real model server: the clock and the pauses are injected, HTTP and PostgreSQL are real."""

from __future__ import annotations

import asyncio
import heapq
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from aiohttp import web

from instep.testing.model_server import ModelServer
from instep.testing.toy import Recorder

TICK_SECONDS = 0.01  # of real time, in which nothing happened, before time leaps


class Timelapse:
    """A clock that stands still while there is something to do, and leaps to the next pause's end when there is not."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._now, self._number = 1000.0, count()
        self._pauses: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    def now(self) -> datetime:
        return datetime(2026, 12, 1, tzinfo=UTC) + timedelta(seconds=self._now)

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def token(self) -> int:
        return secrets.randbits(62) + 1

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._pauses, (self._now + seconds, next(self._number), future))
        await future

    def pass_by(self, seconds: float) -> None:
        self._now += seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            requests = self._server.requests
            await asyncio.sleep(TICK_SECONDS)
            if self._server.active or self._server.requests != requests:
                continue
            while self._pauses and self._pauses[0][2].done():
                heapq.heappop(self._pauses)  # cancelled
            if self._pauses:
                until, _, future = heapq.heappop(self._pauses)
                self._now = max(self._now, until)
                future.set_result(None)


class Waiting(Recorder):
    """Lets the pause pass by that a worker which stays says it makes."""

    def __init__(self, clock: Timelapse) -> None:
        super().__init__()
        self._clock = clock

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        super().event(name, fields)
        if name == "outage":
            seconds = fields["seconds"]
            assert isinstance(seconds, float | int)
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._clock.pass_by, float(seconds))


class ThrottlingServer(ModelServer):
    """Answers `calls` requests in any `seconds`, the others with 429 and when to come again."""

    def __init__(self, *, calls: int, seconds: float, **more: Any) -> None:
        super().__init__("tei", **more)
        self.clock = Timelapse(self)
        self.calls, self.seconds = calls, seconds
        self.answered: list[float] = []  # when
        self.throttled = 0
        self._recent: deque[float] = deque()

    def rate(self, since: float) -> float:
        """What was answered, in parts of what was allowed."""
        passed = self.clock.monotonic() - since
        return len(self.answered) / (self.calls * (1 + passed / self.seconds))

    def _refused(
        self, request: web.Request, asked: dict[str, Any], texts: Sequence[str]
    ) -> web.Response | None:
        now = self.clock.monotonic()
        while self._recent and self._recent[0] <= now - self.seconds:
            self._recent.popleft()
        if len(self._recent) >= self.calls:
            self.throttled += 1
            wait = math.ceil(self._recent[0] + self.seconds - now)
            said: Mapping[str, str] = {"error": "rate limit reached", "error_type": "overloaded"}
            return web.json_response(said, status=429, headers={"retry-after": str(wait)})
        refused = super()._refused(request, asked, texts)
        if refused is None:
            self._recent.append(now)
            self.answered.append(now)
        return refused
