"""The process that serves: uvicorn, with a bound on how long a client may take to say what it wants."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from instep.errors import Refused
from instep.settings import Settings

HEADER_SECONDS = 10.0  # until a connection's first request must be here
KEEP_ALIVE_SECONDS = 30
GRACE_SECONDS = 3  # for requests in hand and streams, when the server ends


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that ends a connection whose first request does not come: uvicorn itself waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._impatience = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._end_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._impatience.cancel()
        super().connection_lost(exc)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def config(app: FastAPI, settings: Settings, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.serve_host,
        port=settings.serve_port,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # web/headers.py writes it, with the request id
        server_header=False,
        proxy_headers=False,  # who calls is who connects
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **more,
    )


class Server(uvicorn.Server):
    """Ends quietly by a signal: uvicorn raises it once more at the end, which looks like a crash from outside."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sent, self.handle_exit, sent, None)
        try:
            yield
        finally:
            for sent in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sent)


async def serve(app: FastAPI, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is told the address. Raises Refused where it cannot listen there."""
    with _listening(settings) as listener:
        server = Server(config(app, settings))
        async with app.router.lifespan_context(app):  # ours, so that what it raises is raised here
            server.config.lifespan = "off"
            host, port = listener.getsockname()[:2]
            ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await server.serve(sockets=[listener])


def _listening(settings: Settings) -> socket.socket:
    """Bound before anything else is done: a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.serve_host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.serve_host, settings.serve_port))
    except OSError as error:
        listener.close()
        raise Refused(
            f"cannot listen on {settings.serve_host}:{settings.serve_port}: {error.strerror}",
            hint="give another one with --host and --port",
        ) from error
    return listener
