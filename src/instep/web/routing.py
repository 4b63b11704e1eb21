"""Routes declare their role; the server mounts no other.

`Routes` collects what a module declares, `mount` puts it into the application with the guard before it, and
`check_declared` refuses an application with a route that came by another way. Tests: postgres/test_server_roles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from instep.app import Instep
from instep.errors import Refused
from instep.web.guard import SAFE, Guard
from instep.web.problems import KINDS, MEDIA_TYPE
from instep.web.roles import Caller, Role

AnyEndpoint = TypeVar("AnyEndpoint", bound=Callable[..., Any])
ROLE = "x-role"  # in the OpenAPI description of an operation
STREAMS = "text/event-stream"


class Answer(Response):
    """JSON, by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


class Guarded(APIRoute):
    """A route with a role: the guard is asked before anything of the body is read; an answer to GET has an ETag."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.role = Role((options.get("openapi_extra") or {})[ROLE])
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            guard: Guard = request.app.state.guard
            request.state.caller = await guard.admit(request, self.role)
            return conditional(request, await answer(request))

        return handle


@dataclass(frozen=True, slots=True)
class Declared:
    path: str
    endpoint: Callable[..., Any]
    method: str
    role: Role
    options: dict[str, Any]


@dataclass
class Routes:
    """Routes of one part of the API, under one prefix; `tag` groups them in the OpenAPI description. Further options of
    a route are FastAPI's, and `example`: its answer, for the description."""

    prefix: str = ""
    tag: str = ""
    pages: bool = False  # answers are for people: left out of the OpenAPI description
    declared: list[Declared] = field(default_factory=list)

    def get(self, path: str, *, role: Role, **options: Any) -> Callable[[AnyEndpoint], AnyEndpoint]:
        return self._declare("GET", path, role, options)

    def post(self, path: str, *, role: Role, **options: Any) -> Callable[[AnyEndpoint], AnyEndpoint]:
        return self._declare("POST", path, role, options)

    def delete(self, path: str, *, role: Role, **options: Any) -> Callable[[AnyEndpoint], AnyEndpoint]:
        return self._declare("DELETE", path, role, options)

    def _declare(
        self, method: str, path: str, role: Role, options: dict[str, Any]
    ) -> Callable[[AnyEndpoint], AnyEndpoint]:
        def declare(endpoint: AnyEndpoint) -> AnyEndpoint:
            self.declared.append(Declared(self.prefix + path, endpoint, method, role, options))
            return endpoint

        return declare


def mount(app: FastAPI, routes: Routes | Sequence[Routes]) -> None:
    """Put declared routes into the application. Raises Refused for anything that is none."""
    for each in [routes] if not isinstance(routes, list | tuple) else routes:
        if not isinstance(each, Routes):
            raise Refused(f"{each!r} is no web.routing.Routes: a route without a declared role is not served")
        for one in each.declared:
            options = dict(one.options)
            extra = {ROLE: one.role.value, **options.pop("openapi_extra", {})}
            if one.role is not Role.PUBLIC:
                extra["security"] = [{"key": []}]
            example, status = options.pop("example", None), options.get("status_code") or 200
            responses = {**_problems(one.role), **options.pop("responses", {})}
            if example is not None:
                responses[status] = {
                    **responses.get(status, {}),
                    "content": {Answer.media_type: {"example": example}},
                }
            app.router.add_api_route(
                one.path,
                one.endpoint,
                methods=[one.method],
                route_class_override=Guarded,
                openapi_extra=extra,
                include_in_schema=options.pop("include_in_schema", not each.pages),
                tags=[each.tag] if each.tag else None,
                response_class=options.pop("response_class", Answer),
                responses=responses,
                response_model=options.pop("response_model", None),
                **options,
            )


def check_declared(app: FastAPI) -> None:
    """Raises Refused where a route has no declared role: it would be open to everybody."""
    for route in app.routes:
        if not isinstance(route, Guarded):
            raise Refused(
                f"the route {getattr(route, 'path', route)!r} declares no role",
                hint="declare it with web.routing.Routes, and a role",
            )


def conditional(request: Request, response: Response) -> Response:
    """Give an answer to GET its ETag, and leave its body out where the caller has it."""
    body = getattr(response, "body", None)
    if request.method not in SAFE or response.status_code != 200 or not isinstance(body, bytes):
        return response
    tag = response.headers.get("etag") or etag(body)
    response.headers["etag"] = tag
    response.headers.setdefault("cache-control", "private, no-cache")
    response.headers.setdefault("vary", "authorization, cookie, accept")
    given = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag.removeprefix("W/") in given or "*" in given:
        kept = {name: value for name, value in response.headers.items() if name in _KEPT}
        return Response(status_code=304, headers=kept)
    return response


_KEPT = {"etag", "cache-control", "vary", "set-cookie", "content-location", "expires"}


def etag(content: bytes) -> str:
    return f'"{blake2b(content, digest_size=16).hexdigest()}"'


def opened(request: Request) -> Instep:
    app: Instep = request.app.state.instep
    return app


def calling(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def guarding(request: Request) -> Guard:
    guard: Guard = request.app.state.guard
    return guard


App = Annotated[Instep, Depends(opened)]
Who = Annotated[Caller, Depends(calling)]
Door = Annotated[Guard, Depends(guarding)]


def _problems(role: Role) -> dict[int | str, dict[str, Any]]:
    """What the guard may answer, for the OpenAPI description, with examples."""
    kinds = (
        ["refused", "invalid", "limit"]
        if role is Role.PUBLIC
        else ["refused", "no-key", "role", "invalid", "limit"]
    )
    return {
        KINDS[kind].status: {
            "description": KINDS[kind].title,
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "example": {
                        "type": KINDS[kind].type,
                        "title": KINDS[kind].title,
                        "status": KINDS[kind].status,
                        "detail": "…",
                        "hint": None,
                        "instance": "/api/v1/…",
                        "request_id": "3f0c2a9d11e04b5c",
                    },
                }
            },
        }
        for kind in kinds
    }
