"""The page kit: what a part of the house brings for people, and how a page is written.

    pages = Pages("toys", "instep_toys.pages", navigation=(Entry("Toys", "/toys", order=50),))

    @pages.routes.get("/toys", role=Role.READER)
    async def toys(request: Request, app: App) -> Response:
        return page(request, "toys/toys.html", toys=...)

`package` holds `templates/` (found under the part's name: "toys/toys.html", which extends "web/page.html") and
`assets/` (served under /assets/toys/). Everything that a template shows is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import BaseLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from instep.web.problems import Problem, request_id
from instep.web.roles import NOBODY, Caller, Role
from instep.web.routing import Routes, etag

ASSET_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the navigation, shown to callers who may go there. The core's orders are 10, 20, …"""

    title: str
    path: str
    role: Role = Role.READER
    order: int = 100


@dataclass(frozen=True, slots=True)
class Pages:
    name: str
    package: str = ""  # with templates/ and assets/, each where there is one
    navigation: tuple[Entry, ...] = ()
    routes: Routes = field(default_factory=lambda: Routes(pages=True))


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    type: str
    etag: str


class House:
    """All pages of one application: its templates, assets and navigation."""

    def __init__(self, parts: Iterable[Pages]) -> None:
        self.parts = tuple(parts)
        self.navigation = tuple(
            sorted(
                (entry for part in self.parts for entry in part.navigation), key=lambda e: (e.order, e.title)
            )
        )
        self.assets: Mapping[tuple[str, str], Asset] = {
            (part.name, name): asset for part in self.parts for name, asset in _assets(part.package)
        }
        loaders: dict[str, BaseLoader] = {
            part.name: PackageLoader(part.package) for part in self.parts if _has(part.package, "templates")
        }
        self.environment = Environment(
            loader=PrefixLoader(loaders),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals["asset"] = self.asset_path

    def asset_path(self, part: str, name: str) -> str:
        """The address of an asset, with its version: it may be kept for ever."""
        return f"/assets/{part}/{name}?{self.assets[part, name].etag.strip(chr(34))[:12]}"

    def entries(self, caller: Caller) -> list[Entry]:
        return [entry for entry in self.navigation if caller.role.includes(entry.role)]


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Write a page. Every template has `request`, `caller`, `navigation`, `path` and `request_id`."""
    house: House = request.app.state.house
    caller: Caller = getattr(request.state, "caller", NOBODY)
    text = house.environment.get_template(template).render(
        request=request,
        caller=caller,
        navigation=house.entries(caller),
        path=request.url.path,
        request_id=request_id(request),
        demo=request.app.state.demo,
        **values,
    )
    return HTMLResponse(text, status, {"cache-control": "private, no-cache"})


def problem_page(request: Request, problem: Problem) -> Response:
    """What people see of a problem; a caller without a key is led to where he can give one."""
    from urllib.parse import urlencode

    from starlette.responses import RedirectResponse

    if problem.kind == "no-key":
        return RedirectResponse("/key?" + urlencode({"to": request.url.path}), 303)
    body = problem.response(request)
    answer = page(request, "web/problem.html", status=body.status_code, problem=problem)
    for name, value in problem.headers.items():
        answer.headers[name] = value
    return answer


def _has(package: str, folder: str) -> bool:
    return bool(package) and files(package).joinpath(folder).is_dir()


def _assets(package: str) -> Iterable[tuple[str, Asset]]:
    if not _has(package, "assets"):
        return
    for entry in files(package).joinpath("assets").iterdir():
        type = ASSET_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and type is not None:
            content = entry.read_bytes()
            yield entry.name, Asset(content, type, etag(content))
