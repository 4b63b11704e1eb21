"""Errors over HTTP: problem+json (RFC 9457) with a stable `type`, what was wrong, and what to do.

`title` belongs to the type and never changes; `detail` is of this case; `hint` is the next step, where there is one.
What is not of our error tree is logged whole and told in general words: a defect's text may hold anything.
Test: postgres/test_server_problems.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil
from typing import Any

import orjson
import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg_pool import PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import Response

from instep.errors import Configuration, InstepError, Outage, Permanent, Refused, Retryable, Unknown
from instep.settings import masked

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5  # where an outage gives no better figure

_log = structlog.get_logger("instep.web")


@dataclass(frozen=True, slots=True)
class Kind:
    """`type` is what clients compare: it never changes."""

    type: str
    status: int
    title: str


KINDS = {
    kind.type.rpartition(":")[2]: kind
    for kind in (
        Kind("urn:instep:problem:refused", 400, "The request cannot be done as it is"),
        Kind("urn:instep:problem:beyond-window", 400, "The page lies beyond what an offset reaches"),
        Kind("urn:instep:problem:no-key", 401, "A key is needed"),
        Kind("urn:instep:problem:role", 403, "The key's role does not allow this"),
        Kind("urn:instep:problem:table", 403, "The key is limited to other tables"),
        Kind("urn:instep:problem:origin", 403, "The request comes from another site"),
        Kind("urn:instep:problem:unknown", 404, "There is no such thing here"),
        Kind("urn:instep:problem:method", 405, "The method is not allowed here"),
        Kind("urn:instep:problem:slow", 408, "The request came too slowly"),
        Kind("urn:instep:problem:conflict", 409, "Something else is as it is meanwhile"),
        Kind("urn:instep:problem:too-large", 413, "The request is too large"),
        Kind("urn:instep:problem:invalid", 422, "The request is not of the shape that is needed"),
        Kind("urn:instep:problem:input", 422, "The model refuses this input"),
        Kind("urn:instep:problem:limit", 429, "Too many requests"),
        Kind("urn:instep:problem:http", 400, "The request cannot be answered"),
        Kind("urn:instep:problem:defect", 500, "Something went wrong here"),
        Kind("urn:instep:problem:misconfigured", 503, "A setting of the server is to be mended"),
        Kind("urn:instep:problem:outage", 503, "Something that is needed does not answer"),
    )
}


@dataclass
class Problem(Exception):
    """Raise it in a route for what no error of `instep.errors` says. `kind`: a key of KINDS."""

    kind: str
    detail: str
    hint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = None

    def response(self, request: Request) -> Response:
        kind = KINDS[self.kind]
        status = self.status or kind.status
        body = {
            "type": kind.type,
            "title": kind.title,
            "status": status,
            "detail": self.detail,
            "hint": self.hint,
            "instance": request.url.path,
            "request_id": request_id(request),
            **self.more,
        }
        return Response(
            orjson.dumps(body), status, {**self.headers, "cache-control": "no-store"}, media_type=MEDIA_TYPE
        )


def request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def problem_of(error: Exception) -> Problem:
    """Which problem an error of ours is, or of the database's. A defect is logged by the caller."""
    hint = getattr(error, "hint", None)
    told = masked(str(error))
    match error:
        case Problem():
            return error
        case Unknown():
            return Problem("unknown", told, hint)
        case Refused():
            return Problem("refused", told, hint)
        case Outage():
            return _later("outage", told, hint, error.retry_after)
        case Configuration():
            return Problem("misconfigured", told, hint)
        case Permanent():
            return Problem("input", told, hint)
        case Retryable():
            return _later("outage", told, hint, None)
        case PoolTimeout() | psycopg.OperationalError():
            return _later("outage", "the database does not answer, or all connections are in use", None, None)
        case (
            psycopg.DataError() | UnicodeEncodeError()
        ):  # a NUL, half a surrogate pair, a number beyond its type
            return Problem("refused", "a value in the request is none that the database takes")
        case RequestValidationError():
            return Problem("invalid", _sentence(error.errors()), more={"errors": _places(error.errors())})
        case HTTPException():
            return _of_http(error)
    return Problem("defect", "the server made a mistake; its log says more", "name the request id")


async def answer(request: Request, error: Exception) -> Response:
    """What an error becomes: a page for people, problem+json for programs; a defect is logged whole."""
    problem = problem_of(error)
    if problem.kind == "defect":
        _log.error("defect", path=request.url.path, exc_info=error)
    elif isinstance(error, InstepError | psycopg.Error | PoolTimeout):
        _log.info("problem", kind=problem.kind, detail=problem.detail, path=request.url.path)
    pages = getattr(request.app.state, "problem_page", None)
    if pages is not None and wants_page(request):
        page: Response = pages(request, problem)
        return page
    return problem.response(request)


def install(app: FastAPI) -> None:
    """Answer what is expected to go wrong in a route as a problem. The rest comes to `headers.Frame`."""
    for kind in (
        Problem,
        InstepError,
        psycopg.OperationalError,
        PoolTimeout,
        RequestValidationError,
        HTTPException,
    ):
        app.add_exception_handler(kind, answer)


def wants_page(request: Request) -> bool:
    """A browser that shows pages; whatever is asked under /api gets JSON."""
    accept = request.headers.get("accept", "")
    return "text/html" in accept and not request.url.path.startswith("/api/")


def _later(kind: str, detail: str, hint: str | None, seconds: float | None) -> Problem:
    return Problem(kind, detail, hint, {"retry-after": str(ceil(seconds or RETRY_SECONDS))})


def _of_http(error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return Problem("unknown", "nothing has this address", "/api/v1/openapi.json lists all", headers)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return Problem("method", "this address has no such method", None, headers)
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Problem("too-large", str(error.detail), None, headers)
    return Problem("http", str(error.detail), None, headers, status=error.status_code)


def _places(errors: Sequence[Any]) -> list[dict[str, str]]:
    return [{"where": ".".join(map(str, one["loc"])), "what": str(one["msg"])} for one in errors]


def _sentence(errors: Sequence[Any]) -> str:
    return "; ".join(f"{one['where']}: {one['what']}" for one in _places(errors))


SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong, and what to do (RFC 9457).",
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
    "properties": {
        "type": {"type": "string", "enum": sorted(kind.type for kind in KINDS.values())},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": ["string", "null"]},
        "instance": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}
