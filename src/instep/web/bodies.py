"""Bodies that are too large or come too slowly are refused while they come, whatever their headers say."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instep.web.problems import Problem


class Bodies:
    """`largest`: bytes of a body; `seconds`: until it must be here whole."""

    def __init__(self, app: ASGIApp, largest: int, seconds: float) -> None:
        self._app, self._largest, self._seconds = app, largest, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            length = int(Headers(scope=scope).get("content-length", "0"))
        except ValueError:
            length = 0  # the server in front has refused what is no number
        if length > self._largest:
            await self._refuse(self._too_large(), scope, receive, send)
            return
        seen, over, started = 0, False, False
        refusal: Problem | None = None
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def bounded() -> Message:
            nonlocal seen, over, refusal
            if over:  # the body is here: what comes now is that the caller goes away, and it may stay
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                refusal = Problem(
                    "slow",
                    f"the request's body was not here after {self._seconds:g} s",
                    None,
                    {"connection": "close"},
                )
                raise refusal from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                over = not message.get("more_body", False)
                if seen > self._largest:
                    refusal = self._too_large()
                    raise refusal
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            if refusal is not None and not started:
                return  # what reads bodies makes an error of its own of ours: it is not sent
            started = True
            await send(message)

        try:
            await self._app(scope, bounded, watched)
        except Problem as problem:
            if problem is not refusal:
                raise
        if refusal is not None and not started:
            await self._refuse(refusal, scope, receive, send)

    def _too_large(self) -> Problem:
        return Problem(
            "too-large",
            f"a request's body has at most {self._largest:,} bytes",
            None,
            {"connection": "close"},
        )

    async def _refuse(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        await problem.response(Request(scope))(scope, receive, send)
