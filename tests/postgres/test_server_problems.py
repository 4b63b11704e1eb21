"""Errors over HTTP: a stable type, what was wrong, what to do; and nothing that is not for the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_scene import Served, served

from instep.errors import Configuration, Outage, Permanent, Refused, Retryable, SettingsError, Unknown
from instep.web.problems import KINDS, MEDIA_TYPE, Problem, problem_of
from instep.web.roles import Role
from instep.web.routing import Routes, mount

SECRET = "postgresql://me:hunter2@db/x"
ERRORS = [
    (Refused("no"), 400, "refused"),
    (SettingsError("no"), 400, "refused"),
    (Unknown("no"), 404, "unknown"),
    (Outage("no"), 503, "outage"),
    (Configuration("no"), 503, "misconfigured"),
    (Permanent("no"), 422, "input"),
    (Retryable("no"), 503, "outage"),
    (psycopg.OperationalError("no"), 503, "outage"),
    (ZeroDivisionError(SECRET), 500, "defect"),
    (psycopg.errors.UndefinedTable(SECRET), 500, "defect"),
    (Problem("conflict", "no"), 409, "conflict"),
]


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(dsn, tmp_path) as scene:
        yield scene


def test_types_never_change() -> None:
    """Clients compare them: a change here is a change of the API."""
    assert {kind.type.removeprefix("urn:instep:problem:"): kind.status for kind in KINDS.values()} == {
        "refused": 400, "beyond-window": 400, "no-key": 401, "role": 403, "table": 403, "origin": 403, "unknown": 404,
        "method": 405, "slow": 408, "conflict": 409, "too-large": 413, "invalid": 422, "input": 422, "limit": 429,
        "http": 400, "defect": 500, "misconfigured": 503, "outage": 503,
    }  # fmt: skip


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_error_of_ours_is_a_problem(error: Exception, status: int, kind: str) -> None:
    problem = problem_of(error)
    assert (problem.kind, KINDS[problem.kind].status) == (kind, status)
    assert "hunter2" not in problem.detail


def test_a_password_is_in_no_problem() -> None:
    assert "hunter2" not in problem_of(Outage(f"cannot connect to {SECRET}")).detail


async def test_a_problem_says_what_was_wrong_and_what_to_do(scene: Served) -> None:
    client = await scene.client()
    answer = await client.get("/api/v1/search/articels?q=chess", headers={"x-request-id": "my-own-id-1"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, MEDIA_TYPE)
    assert answer.headers["x-request-id"] == "my-own-id-1"
    assert answer.json() == {
        "type": "urn:instep:problem:unknown",
        "title": "There is no such thing here",
        "status": 404,
        "detail": "There is no source 'articels'.",
        "hint": "Did you mean articles?",
        "instance": "/api/v1/search/articels",
        "request_id": "my-own-id-1",
    }


REFUSALS: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/nope", None, 404, "unknown"),
    ("PUT", "/health", None, 405, "method"),
    ("GET", "/api/v1/search/articles", None, 422, "invalid"),
    ("GET", "/api/v1/search/articles?q=%20", None, 400, "refused"),
    ("GET", "/api/v1/search/articles?q=chess&mode=sideways", None, 422, "invalid"),
    ("GET", "/api/v1/search/articles?q=chess&limit=0", None, 422, "invalid"),
    ("GET", "/api/v1/search/articles?q=chess&where=nope%20%3D%201", None, 400, "refused"),
    ("GET", "/api/v1/search/articles?q=chess&offset=9999", None, 400, "beyond-window"),
    ("GET", "/api/v1/explain/articles.embed/abc", None, 400, "refused"),
    ("GET", "/api/v1/explain/nope.embed/1", None, 404, "unknown"),
    ("GET", "/api/v1/dead/articles/1", None, 404, "unknown"),
    ("GET", "/api/v1/derivations/articles.nope", None, 404, "unknown"),
    ("GET", "/api/v1/derivations/articles.embed/entries?cursor=zzz", None, 400, "refused"),
    ("GET", "/api/v1/derivations/articles.embed/entries?cursor=WzFd", None, 400, "refused"),
    ("GET", "/api/v1/dead/articles.embed?cursor=WzEsMiwzXQ", None, 400, "refused"),
    ("GET", "/api/v1/derivations/articles.embed/runs?cursor=WyJ4Il0", None, 400, "refused"),
    ("POST", "/api/v1/dead/articles/replay", {}, 400, "refused"),
    ("POST", "/api/v1/dead/articles/replay", {"all": True, "kind": "x"}, 400, "refused"),
    ("POST", "/api/v1/dead/articles/discard", {"all": True}, 422, "invalid"),
    ("POST", "/api/v1/pauses/articles", {"reason": "x", "until": "2020-01-01T00:00:00Z"}, 400, "refused"),
    ("POST", "/api/v1/pauses/articles", {"reason": "x", "more": 1}, 422, "invalid"),
    ("POST", "/api/v1/tables", {"table": "notes", "text": ["body"], "confirm": "x"}, 409, "conflict"),
    ("POST", "/api/v1/tables/plan", {"table": "nope", "text": ["body"]}, 400, "refused"),
    ("POST", "/api/v1/keys", {"role": "king"}, 422, "invalid"),
    ("POST", "/api/v1/keys", {"role": "reader", "tables": ["nope"]}, 404, "unknown"),
    ("DELETE", "/api/v1/keys/nope", None, 404, "unknown"),
    ("DELETE", "/api/v1/tables/nope", None, 404, "unknown"),
    ("GET", "/api/v1/derivations/a%00b", None, 400, "refused"),
    ("GET", "/api/v1/search/a%00b?q=chess", None, 400, "refused"),
    ("GET", "/api/v1/dead/articles.embed?kind=a%00b", None, 400, "refused"),
    ("GET", "/api/v1/search/articles?q=chess&where=section%20%3D%20'a%00b'", None, 400, "refused"),
    (
        "GET",
        "/api/v1/search/articles?q=chess&mode=lexical&where=price%20%3C%201e9999999",
        None,
        400,
        "refused",
    ),
    ("GET", "/api/v1/explain/articles.embed/99999999999999999999999", None, 400, "refused"),
    ("POST", "/api/v1/pauses/articles", {"reason": "a\0b"}, 400, "refused"),
    ("POST", "/api/v1/keys", {"role": "reader", "name": "a\nb"}, 400, "refused"),
]


async def test_each_refusal_over_http(scene: Served) -> None:
    client = await scene.client()
    for method, path, body, status, kind in REFUSALS:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE), (
            path,
            answer.text,
        )
        told = answer.json()
        assert told["type"] == f"urn:instep:problem:{kind}", path
        assert told["detail"], path
        assert told["request_id"] == answer.headers["x-request-id"]
        assert kind != "invalid" or told["errors"][0]["where"], path


async def test_a_body_that_is_no_json_needs_a_key_first(scene: Served) -> None:
    for client, status in ((await scene.client(None), 401), (await scene.client("operator"), 422)):
        answer = await client.post(
            "/api/v1/pauses", content=b"{", headers={"content-type": "application/json"}
        )
        assert answer.status_code == status


async def test_half_a_surrogate_pair_is_refused(scene: Served) -> None:
    client = await scene.client()
    answer = await client.post(
        "/api/v1/pauses/articles",
        content=b'{"reason": "\\ud800"}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (400, 422), answer.text


async def test_a_defect_is_told_in_general_words(scene: Served) -> None:
    async def fails() -> None:
        raise ZeroDivisionError(SECRET)

    routes = Routes("/api/v1/broken", tag="broken")
    routes.get("", role=Role.READER)(fails)
    mount(scene.app, routes)
    client = await scene.client("reader")
    answer = await client.get("/api/v1/broken")
    assert (answer.status_code, answer.headers["content-type"]) == (500, MEDIA_TYPE)
    assert "hunter2" not in answer.text
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "content-security-policy" in answer.headers


async def test_people_see_a_page(scene: Served) -> None:
    client = await scene.client("reader", accept="text/html,*/*")
    answer = await client.get("/nope")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "nothing has this address" in answer.text
    assert (await client.get("/api/v1/nope")).headers["content-type"] == MEDIA_TYPE


async def test_a_database_that_is_gone_is_an_outage(scene: Served) -> None:
    client = await scene.client("reader")
    assert (await client.get("/api/v1/health")).json()["status"] == "ok"
    await scene.instep.database.close()
    answer = await client.get("/api/v1/derivations")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:instep:problem:outage")
    assert answer.headers["retry-after"]
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/api/v1/health")).status_code == 503
