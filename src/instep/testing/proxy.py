"""A real small TCP proxy before a PostgreSQL, for tests of what a network does to a worker.

    async with Proxy(dsn) as proxy:
        conn = await psycopg.AsyncConnection.connect(proxy.dsn)
        proxy.delay = 0.012      # seconds, each way
        proxy.drop = True        # a black hole: bytes vanish in both directions, nothing is closed
        proxy.trap(b"for update skip locked")  # a black hole from the moment that a client sends these bytes
        proxy.close()            # end all connections; new ones are taken

Whoever is behind a black hole gets no word: the proxy goes on to acknowledge what it throws away, so neither
keep-alives nor tcp_user_timeout see it. Connections that arrive meanwhile are accepted and get no answer either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65536


class _Trap:
    """What springs when a client sends `marker`."""

    def __init__(self, marker: bytes, *, forward: bool, alone: bool) -> None:
        self.marker, self.forward, self.alone = marker, forward, alone
        self.sprung = asyncio.Event()


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self) -> None:
        self.drop = False
        self.writers: list[asyncio.StreamWriter] = []

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Listens on a loopback port (`port`, 0: any that is free) and passes everything on to the server of `dsn`, which
    may be behind a Unix socket."""

    def __init__(self, dsn: str, port: int = 0) -> None:
        self._target = dsn
        self.port = port
        self.delay = 0.0
        self.drop = False
        self.refuse = False  # close each new connection at once
        self.connections = 0  # that came, refused ones included
        self.bytes_up = 0  # passed on to the server
        self.bytes_down = 0  # passed on to clients
        self.dropped = 0  # bytes that vanished, both ways
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trap: _Trap | None = None
        self._server: asyncio.Server | None = None

    @property
    def dsn(self) -> str:
        """As the server's, by way of this proxy."""
        return make_conninfo(self._target, host="127.0.0.1", port=str(self.port), hostaddr=None)

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Down: new connections are refused, those that are open are ended."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """End all connections, without a word."""
        for link in list(self._links):
            link.close()

    def aim(self, dsn: str) -> None:
        """New connections go to another server: a failover. Those that are open stay; `close` ends them."""
        self._target = dsn

    def trap(self, marker: bytes, *, forward: bool = False, alone: bool = False) -> asyncio.Event:
        """A black hole from the moment that a client sends `marker`. The event tells when it was sent.

        `forward`: what held the marker still reaches the server, only the answer is lost (a COMMIT of which nobody
        learns, say). `alone`: that connection alone, instead of all."""
        self._trap = _Trap(marker, forward=forward, alone=alone)
        return self._trap.sprung

    def restore(self) -> None:
        """The network is well again; connections that were in the black hole are ended: what they lost is lost."""
        self.drop, self._trap, self.delay = False, None, 0.0
        self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: asyncio would report the cancellation of a task of its own as an error."""
        self.connections += 1
        link = _Link()
        link.writers.append(writer)
        self._links.add(link)
        task = asyncio.create_task(self._serve(link, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuse:
                return
            server_reader, server_writer = await self._connect()
            link.writers.append(server_writer)
            up = asyncio.create_task(self._pass(link, reader, server_writer, up=True))
            down = asyncio.create_task(self._pass(link, server_reader, writer, up=False))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for one in (up, down):
                one.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            return  # the server is not there: the client sees its connection end
        finally:
            link.close()
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        info = conninfo_to_dict(self._target)
        host, port = str(info.get("host") or "127.0.0.1"), int(info.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pass(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        """One direction. What is read is written `delay` later, in order, without slowing the reading down. Where one
        side ends, the other learns of it, unless a black hole is between them."""
        waiting: deque[tuple[float, bytes]] = deque()
        arrived = asyncio.Event()
        sending = asyncio.create_task(self._send(link, writer, waiting, arrived, up))
        loop = asyncio.get_running_loop()
        tail = b""
        try:
            while data := await reader.read(CHUNK):
                vanishes = self.drop or link.drop
                if up and not vanishes:
                    seen = tail + data
                    vanishes = self._spring(link, seen)
                    trap = self._trap
                    tail = seen[-len(trap.marker) :] if trap is not None else b""
                if vanishes:
                    self.dropped += len(data)
                    continue
                waiting.append((loop.time() + self.delay, data))
                arrived.set()
            if self.drop or link.drop:
                await asyncio.Event().wait()
            waiting.append((loop.time() + self.delay, b""))
            arrived.set()
            await sending
        finally:
            sending.cancel()

    def _spring(self, link: _Link, seen: bytes) -> bool:
        """Whether the trap sprang and took what was just sent."""
        trap = self._trap
        if trap is None or trap.marker not in seen:
            return False
        self._trap = None
        if trap.alone:
            link.drop = True
        else:
            self.drop = True
        trap.sprung.set()
        return not trap.forward

    async def _send(
        self,
        link: _Link,
        writer: asyncio.StreamWriter,
        waiting: deque[tuple[float, bytes]],
        arrived: asyncio.Event,
        up: bool,
    ) -> None:
        """Ends after the empty piece that stands for the end."""
        loop = asyncio.get_running_loop()
        while True:
            while not waiting:
                arrived.clear()
                await arrived.wait()
            due, data = waiting.popleft()
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            if not data:
                return
            if not up and (self.drop or link.drop):  # the hole opened while it was on its way
                self.dropped += len(data)
                continue
            writer.write(data)
            await writer.drain()
            if up:
                self.bytes_up += len(data)
            else:
                self.bytes_down += len(data)
