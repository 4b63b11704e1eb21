"""The application: the core's routes and pages, and those of the catalogues, behind one guard.

What holds (tests/postgres/test_server_roles.py): every route has a declared role, or the application is not made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from instep.app import Instep
from instep.clock import SYSTEM, Clock
from instep.errors import Refused
from instep.registry import Catalogue, catalogues, load
from instep.server import health
from instep.server.api import API
from instep.server.keeping import Keeper
from instep.server.pages import PAGES
from instep.server.running import Runs
from instep.server.state import Opened
from instep.settings import Settings
from instep.web import problems
from instep.web.bodies import Bodies
from instep.web.guard import Guard, is_loopback
from instep.web.headers import Frame
from instep.web.pages import House, Pages, problem_page
from instep.web.routing import check_declared, mount

WEB = Pages("web", "instep.web")  # the templates and assets that all pages share


def create_app(
    settings: Settings, *, found: Sequence[Catalogue] | None = None, clock: Clock = SYSTEM
) -> FastAPI:
    """The ASGI application. `found`: the catalogues; None: all that are installed. Raises Refused for a demo that other
    machines could reach, and for a route without a role."""
    if settings.serve_demo and not is_loopback(settings.serve_host):
        raise Refused(
            f"a demo is open to everybody who reaches it, and {settings.serve_host} can be reached from outside",
            hint="serve it on 127.0.0.1, or make keys: instep keys create",
        )
    found = catalogues() if found is None else found
    house = House([WEB, *PAGES, *_pages(found)])
    app = FastAPI(
        title="instep",
        version=version("instep"),
        description="Everything you derive from PostgreSQL, kept in step with it.",
        openapi_url=None,  # served by health.py, as a route with a role
        docs_url=None,  # they call other origins
        redoc_url=None,
        lifespan=_lifespan(settings, clock),
        redirect_slashes=False,
    )
    app.state.house, app.state.demo, app.state.settings = house, settings.serve_demo, settings
    app.state.problem_page = problem_page
    problems.install(app)
    mount(app, [health.routes, *API])
    for catalogue in found:
        if catalogue.routes:
            mount(app, load(catalogue.routes))
    for part in house.parts:
        mount(app, part.routes)
    check_declared(app)
    app.openapi = _openapi(app)  # type: ignore[method-assign]
    app.add_middleware(Bodies, largest=settings.serve_body_bytes, seconds=settings.serve_body_seconds)
    app.add_middleware(Frame, clock=clock)
    return app


def _pages(found: Sequence[Catalogue]) -> list[Pages]:
    parts: list[Pages] = []
    for catalogue in found:
        if catalogue.pages:
            part = load(catalogue.pages)
            if not isinstance(part, Pages) or part.name != catalogue.name:
                raise Refused(f"{catalogue.pages!r} is no web.pages.Pages named {catalogue.name!r}")
            parts.append(part)
    return parts


def _lifespan(settings: Settings, clock: Clock) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pooled = settings.model_copy(update={"pool_size": settings.api_pool})
        async with Instep.open(pooled) as instep:
            app.state.instep = instep
            app.state.guard = Guard(
                instep, clock, demo=settings.serve_demo, per_minute=settings.serve_requests_per_minute
            )
            keeper, runs = Keeper(instep, settings.sample_seconds), Runs(settings, clock)
            app.state.opened = Opened(settings, keeper, runs)
            async with keeper.running(), runs.running():
                yield

    return lifespan


def _openapi(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            parts = made.setdefault("components", {})
            parts["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer", "description": "A key: instep keys create"}
            }
            parts.setdefault("schemas", {})["Problem"] = problems.SCHEMA
            app.openapi_schema = made
        return app.openapi_schema

    return describe
