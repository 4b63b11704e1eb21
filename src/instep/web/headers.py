"""Around every answer: a request id, in logs too; headers that keep a browser safe; one log line; and what a defect
becomes, so that its answer has all of that too."""

from __future__ import annotations

import re

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instep.clock import Clock
from instep.web import problems

REQUEST_ID = "x-request-id"
_GIVEN = re.compile(r"[A-Za-z0-9._:-]{8,64}")

# Nothing from another origin, nothing inline: stored text that holds HTML cannot do anything.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "media-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(self)",
}

_log = structlog.get_logger("instep.web")


class Frame:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app, self._clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        given = Headers(scope=scope).get(REQUEST_ID, "")
        id = given if _GIVEN.fullmatch(given) else f"{self._clock.token():016x}"
        scope.setdefault("state", {})["request_id"] = id
        status = 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = id
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=id):
            try:
                await self._app(scope, receive, framed)
            except Exception as error:  # noqa: BLE001 the last stop: it is logged, and told in general words
                answer = await problems.answer(Request(scope), error)
                if not status:
                    await answer(scope, receive, framed)
            finally:
                caller = scope["state"].get("caller")
                _log.debug(
                    "request",
                    method=scope["method"],
                    path=scope["path"],  # never the query: it holds what people look for
                    status=status,
                    seconds=round(self._clock.monotonic() - began, 4),
                    key=caller.id if caller is not None else "",
                )
