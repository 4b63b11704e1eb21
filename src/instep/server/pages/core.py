"""The core's part of the pages: its routes, templates and navigation; and where a browser is given its key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Query, Request
from starlette.responses import RedirectResponse, Response

from instep.server.state import House
from instep.web import keys
from instep.web.guard import COOKIE
from instep.web.pages import Entry, Pages, page
from instep.web.roles import Role
from instep.web.routing import App, Who

COOKIE_SECONDS = 30 * 24 * 3600

pages = Pages("server", "instep.server.pages", navigation=(Entry("Overview", "/", order=10),))


@pages.routes.get("/", role=Role.READER)
async def overview(request: Request, house: House, caller: Who) -> Response:
    figures = await house.keeper.figures()
    statuses = [one for name, one in sorted(figures.items()) if caller.sees(name)]
    return page(request, "server/overview.html", statuses=statuses)


@pages.routes.get("/key", role=Role.PUBLIC)
async def ask_key(request: Request, to: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    return page(request, "server/key.html", to=_inside(to), wrong=False)


@pages.routes.post("/key", role=Role.PUBLIC)
async def take_key(
    request: Request,
    app: App,
    key: Annotated[str, Form(max_length=200)],
    to: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """The browser keeps the key in a cookie that scripts cannot read and other sites' requests do not carry."""
    async with app.database.connection() as conn:
        known = await keys.caller(conn, key.strip())
    if known is None:
        return page(request, "server/key.html", status=401, to=_inside(to), wrong=True)
    answer = RedirectResponse(_inside(to), 303)
    answer.set_cookie(
        COOKIE,
        key.strip(),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@pages.routes.post("/key/forget", role=Role.PUBLIC)
async def forget_key() -> Response:
    answer = RedirectResponse("/key", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _inside(to: str) -> str:
    """An address on this server: never one that leads a browser elsewhere."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable() else "/"
