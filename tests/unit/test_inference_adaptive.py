"""The adaptive limit before simulated servers, on a loop whose time is virtual: minutes pass in milliseconds."""

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

import pytest

from instep.inference import adaptive
from instep.inference.adaptive import AdaptiveLimit

BATCH, HIGHEST = 32, 8


class _Leaping(selectors.DefaultSelector):
    """Waiting is leaping: nothing of these tests comes from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for somebody else"
        self.now += max(timeout, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


class _LoopClock:
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def uniform(self, low: float, high: float) -> float:
        return low

    def token(self) -> int:
        return 1


def simulated(work: Callable[[], Awaitable[object]]) -> None:
    loop = _VirtualLoop()
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


@dataclass
class Server:
    """Works `lanes` requests at once, first come first served; each takes `fixed` + `each` for a text, give or take
    `noise` of it."""

    each: float
    fixed: float = 0.0
    lanes: int = 1
    noise: float = 0.1
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lanes, self._draw = asyncio.Semaphore(self.lanes), random.Random(1)

    async def ask(self, texts: int) -> None:
        async with self._lanes:
            part = self._draw.uniform(1 - self.noise, 1 + self.noise)
            await asyncio.sleep((self.fixed + self.each * texts) * part)


class Neighbour:
    """Another process's queries."""

    def __init__(self) -> None:
        self.asking = False

    def announce(self, server: str) -> None:
        raise AssertionError("bulk work announced a query")

    def wanted(self, server: str) -> bool:
        return self.asking


async def bulk(server: Server, limit: AdaptiveLimit, seconds: float, client: float = 0.002) -> float:
    """Texts a second of a client that always has work, as the embedder sends it."""
    done, until = 0, asyncio.get_running_loop().time() + seconds

    async def piece() -> None:
        nonlocal done
        while asyncio.get_running_loop().time() < until:
            left = BATCH
            while left:
                async with limit.slot(left, urgent=False) as slot:
                    await asyncio.sleep(client)
                    began = asyncio.get_running_loop().time()
                    await server.ask(slot.texts)
                    slot.answered(asyncio.get_running_loop().time() - began)
                server.sizes.append(slot.texts)
                left -= slot.texts
                done += slot.texts * (asyncio.get_running_loop().time() <= until)

    async with asyncio.TaskGroup() as group:
        for _ in range(2 * HIGHEST):
            group.create_task(piece())
    return done / seconds


async def queries(server: Server, seconds: float, every: float = 0.5) -> list[float]:
    """How long each of them took."""
    draw, taken, until = random.Random(2), [], asyncio.get_running_loop().time() + seconds

    async def one() -> None:
        began = asyncio.get_running_loop().time()
        await server.ask(1)
        taken.append(asyncio.get_running_loop().time() - began)

    async with asyncio.TaskGroup() as group:
        while asyncio.get_running_loop().time() < until:
            group.create_task(one())
            await asyncio.sleep(draw.uniform(0.2, 1.8) * every)
    return sorted(taken)


def p95(taken: list[float]) -> float:
    return taken[int(len(taken) * 0.95)]


def most(server: Server) -> float:
    """Texts a second of a client that sends full requests, `HIGHEST` at once."""
    lanes = min(server.lanes, HIGHEST)
    return lanes * BATCH / (server.fixed + server.each * BATCH + 0.002 * (server.lanes > 1))


SERVERS: dict[str, dict[str, Any]] = {
    "the reference's": {"each": 0.09},
    "a small model on a processor": {"each": 0.02, "fixed": 0.005, "noise": 0.4},
    "a fast one": {"each": 0.001, "fixed": 0.01},
    "one that answers at once": {"each": 0.00001, "fixed": 0.0002},
    "a far one that works many at once": {"each": 0.001, "fixed": 0.6, "lanes": 100},
    "one that batches": {"each": 0.0001, "fixed": 0.15, "lanes": 6},
}
LENGTHS = {"one that answers at once": 0.03, "a fast one": 0.3}  # of the simulated time: they do much in it


@pytest.mark.parametrize("name", SERVERS)
def test_without_queries_bulk_work_goes_at_full_speed(name: str) -> None:
    async def work() -> None:
        server = Server(**SERVERS[name])
        limit = AdaptiveLimit(HIGHEST, clock=_LoopClock())
        part = LENGTHS.get(name, 1.0)
        await bulk(server, limit, 20 * part)
        assert await bulk(server, limit, 100 * part) >= 0.95 * most(server)

    simulated(work)


@pytest.mark.parametrize("name", SERVERS)
def test_queries_of_another_process_go_before_bulk_work(name: str) -> None:
    async def work() -> None:
        server, neighbour = Server(**SERVERS[name]), Neighbour()
        limit = AdaptiveLimit(HIGHEST, precedence=neighbour, clock=_LoopClock())
        loop = asyncio.get_running_loop()
        part = LENGTHS.get(name, 1.0)
        await bulk(server, limit, 20 * part)
        server.sizes.clear()
        drain = loop.create_task(bulk(server, limit, 120 * part))
        asked = loop.create_task(queries(server, 120 * part))
        loop.call_later(0.25, setattr, neighbour, "asking", True)
        rate, taken = await drain, await asked
        smallest = server.fixed + server.each * median(server.sizes)
        assert rate >= 0.7 * most(server)
        assert p95(taken) <= server.fixed + server.each + 1.5 * smallest + 0.02
        neighbour.asking = False  # and grows again after
        assert await bulk(server, limit, 60 * part) >= 0.93 * most(server)

    simulated(work)


def test_what_a_query_would_wait_for_without_the_limit() -> None:
    """So that the tests above can fail: the reference's 8 to 10 s, and more."""

    async def work() -> None:
        server = Server(**SERVERS["the reference's"])
        loop = asyncio.get_running_loop()

        async def unlimited() -> None:
            while loop.time() < until:
                await server.ask(BATCH)

        until = loop.time() + 120
        drains = [loop.create_task(unlimited()) for _ in range(4)]
        taken = await queries(server, 100)
        await asyncio.gather(*drains)
        assert p95(taken) > 8

    simulated(work)


def test_urgent_requests_wait_for_nothing_and_bulk_waits_for_them() -> None:
    async def work() -> None:
        limit, order = AdaptiveLimit(1, clock=_LoopClock()), []

        async def ask(name: str, urgent: bool, seconds: float) -> None:
            async with limit.slot(4, urgent=urgent) as slot:
                order.append(name)
                assert slot.texts == 4
                await asyncio.sleep(seconds)

        async with asyncio.TaskGroup() as group:
            group.create_task(ask("bulk", False, 1.0))
            await asyncio.sleep(0.1)
            group.create_task(ask("more", False, 1.0))
            await asyncio.sleep(0.8)
            group.create_task(ask("query", True, 0.3))
            await asyncio.sleep(0.2)
            assert order == ["bulk", "query"]
        assert order == ["bulk", "query", "more"]

    simulated(work)


def test_a_cancelled_wait_gives_its_turn_to_the_next() -> None:
    async def work() -> None:
        limit = AdaptiveLimit(1, clock=_LoopClock())

        async def ask() -> None:
            async with limit.slot(1, urgent=False):
                await asyncio.sleep(1)

        first = [asyncio.ensure_future(ask()) for _ in range(4)]
        await asyncio.sleep(0.5)
        first[1].cancel()
        await asyncio.sleep(0.6)  # the third holds it
        first[2].cancel()
        async with asyncio.timeout(1.5):
            await first[3]

    simulated(work)


def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    """With many waiting, of whom the end of one wakes another that is cancelled in the same moment."""

    async def work() -> None:
        limit = AdaptiveLimit(2, clock=_LoopClock())

        async def ask() -> None:
            async with limit.slot(1, urgent=False):
                await asyncio.sleep(1)

        async def whole() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(ask())

        task = asyncio.ensure_future(whole())
        await asyncio.sleep(2.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1.5):
            await ask()

    simulated(work)


def test_a_server_that_throttles_gets_one_request_at_a_time() -> None:
    async def work() -> None:
        limit = AdaptiveLimit(HIGHEST, clock=_LoopClock())
        await bulk(Server(each=0.0001), limit, 10)
        assert limit.window == HIGHEST
        async with limit.slot(1, urgent=False) as slot:
            slot.refused(20.0)
        assert limit.window == 1

    simulated(work)


def test_a_client_that_is_new_begins_small_while_queries_come() -> None:
    async def work() -> None:
        neighbour = Neighbour()
        neighbour.asking = True
        limit = AdaptiveLimit(HIGHEST, precedence=neighbour, clock=_LoopClock())
        async with limit.slot(500, urgent=False) as slot:
            assert slot.texts == adaptive.FIRST_TEXTS

    simulated(work)
