"""Every route declares a role, and keeps to it: walked from the OpenAPI description."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from server_scene import Served, served

from instep.errors import Refused
from instep.server.factory import create_app
from instep.settings import Settings
from instep.web.guard import Guard
from instep.web.roles import KEY_ROLES, Role
from instep.web.routing import ROLE, Guarded, Routes, check_declared, mount

VALUES = {"name": "articles.embed", "key": "5", "id": "instep_000000000000", "part": "web"}
METHODS = ("get", "post", "put", "patch", "delete")


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in description["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def example_body(description: dict[str, Any], operation: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    schema = description["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    return schema["examples"][0]


async def answered(client: httpx.AsyncClient, method: str, path: str, body: Any) -> int:
    """The status alone: a stream of events does not end."""
    for name, value in VALUES.items():
        path = path.replace(f"{{{name}}}", value)
    if path.startswith(("/api/v1/search", "/api/v1/tables/articles")):
        path = path.replace("articles.embed", "articles")
    query = {"q": "chess"} if "/search/" in path else None
    async with client.stream(method.upper(), path, json=body, params=query) as answer:
        return answer.status_code


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(dsn, tmp_path) as scene:
        yield scene


async def test_every_operation_keeps_to_its_role(scene: Served) -> None:
    clients = {role: await scene.client(role.value) for role in KEY_ROLES}
    nobody = await scene.client(None)
    wrong = await scene.client(None, authorization="Bearer instep_0123456789ab_wrong")
    description = (await nobody.get("/api/v1/openapi.json")).json()
    seen = 0
    # What removes comes last.
    for method, path, operation in sorted(operations(description), key=lambda one: one[0] == "delete"):
        body, role = example_body(description, operation), Role(operation[ROLE])
        if role is Role.PUBLIC:
            assert await answered(nobody, method, path, body) == 200
            continue
        assert operation["security"] == [{"key": []}]
        seen += 1
        for client in (nobody, wrong):
            assert await answered(client, method, path, body) == 401, (method, path)
        for lower in (one for one in KEY_ROLES if not one.includes(role)):
            assert await answered(clients[lower], method, path, body) == 403, (method, path, lower)
        for enough in (one for one in KEY_ROLES if one.includes(role)):
            status = await answered(clients[enough], method, path, body)
            assert status < 500, (method, path, enough, status)
            assert status not in (401, 403), (method, path, enough, status)
    assert seen >= 20


async def test_every_operation_has_examples(scene: Served) -> None:
    client = await scene.client(None)
    description = (await client.get("/api/v1/openapi.json")).json()
    for method, path, operation in operations(description):
        (success,) = [answer for code, answer in operation["responses"].items() if code.startswith("2")]
        (content,) = success["content"].values()
        assert content.get("example") is not None, (method, path)
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)
        example_body(description, operation)
        for code in ("401", "403", "429"):
            assert operation[ROLE] == "public" or code in operation["responses"], (method, path, code)


async def test_pages_need_a_key_too(scene: Served) -> None:
    client = await scene.client(None)
    for route in scene.app.routes:
        assert isinstance(route, Guarded)
        if route.role is Role.PUBLIC or route.path.startswith("/api/"):
            continue
        path = route.path.format(**{name: VALUES.get(name, "x") for name in route.param_convertors})
        for method in route.methods or ():
            answer = await client.request(method, path, headers={"accept": "text/html"})
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/key?"), path
            assert (await client.request(method, path)).status_code == 401, path


def test_a_route_without_a_role_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="role"):
        Routes().get("/open")  # type: ignore[call-arg]


def test_a_route_that_came_by_another_way_is_refused(tmp_path: Path) -> None:
    app = create_app(Settings.load(flags={"data_dir": str(tmp_path)}, environ={}))
    check_declared(app)

    async def opened() -> dict[str, str]:
        return {}

    app.add_api_route("/open", opened)
    with pytest.raises(Refused, match="'/open' declares no role"):
        check_declared(app)


def test_what_is_no_routes_is_not_mounted() -> None:
    with pytest.raises(Refused, match="declared role"):
        mount(FastAPI(), [object()])  # type: ignore[list-item]


async def test_the_walk_sees_a_route_that_is_open(scene: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk fails where the guard is switched off."""

    async def let_in(self: Guard, request: Any, role: Role) -> Any:
        from instep.web.roles import DEMO

        return DEMO

    monkeypatch.setattr(Guard, "admit", let_in)
    with pytest.raises(AssertionError):
        await test_every_operation_keeps_to_its_role(scene)


def test_every_route_of_the_application_is_guarded(tmp_path: Path) -> None:
    app = create_app(Settings.load(flags={"data_dir": str(tmp_path)}, environ={}))
    assert app.routes
    assert {type(route) for route in app.routes} == {Guarded}
    assert issubclass(Guarded, APIRoute)
