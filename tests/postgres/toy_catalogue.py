"""A catalogue as anybody may write one: a route, a page with a template of its own, and an entry in the navigation."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from instep.registry import Catalogue
from instep.web.pages import Entry, Pages, page
from instep.web.roles import Role
from instep.web.routing import App, Routes, Who

catalogue = Catalogue(name="toy", routes="toy_catalogue:routes", pages="toy_catalogue:pages")

routes = Routes("/api/v1/toys", tag="toys")
pages = Pages("toy", "toy_pages", navigation=(Entry("Toys", "/toys", role=Role.MEMBER, order=50),))


@routes.get("", role=Role.MEMBER, summary="All toys", example={"toys": []})
async def list_toys(app: App, caller: Who) -> dict[str, Any]:
    async with app.database.connection() as conn:
        row = await (await conn.execute("select 'from the database'")).fetchone()
    return {"toys": list(row or ()), "for": caller.role}


@pages.routes.get("/toys", role=Role.MEMBER)
async def show_toys(request: Request, caller: Who) -> Response:
    return page(request, "toy/toys.html", toys=["<img src=x onerror=alert(1)>"])
