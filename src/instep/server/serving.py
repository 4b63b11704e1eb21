"""The process that serves: uvicorn, with a bound on how long a client may take to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from instep.settings import Settings

HEADER_SECONDS = 10.0  # until a connection's first request must be here
KEEP_ALIVE_SECONDS = 30
GRACE_SECONDS = 5  # for requests in hand, when the server ends


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


async def serve(app: FastAPI, settings: Settings) -> None:
    """Serve until a signal."""
    await uvicorn.Server(config(app, settings)).serve()
