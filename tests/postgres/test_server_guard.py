"""Whose request it is: keys, limits, tables, demo mode, other sites; and what must never come through."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from app_scene import ran
from server_scene import Served, served

from instep.errors import Refused
from instep.server import serving
from instep.server.factory import create_app
from instep.settings import Settings
from instep.web.guard import COOKIE, REMEMBERED_SECONDS, is_loopback
from instep.web.headers import CONTENT_SECURITY_POLICY


@pytest.fixture
async def scene(dsn: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(dsn, tmp_path) as scene:
        yield scene


# Keys


async def test_a_key_is_kept_as_a_hash_and_shown_once(scene: Served) -> None:
    administrator = await scene.client()
    made = await administrator.post("/api/v1/keys", json={"role": "reader", "name": "shop"})
    assert made.status_code == 201
    secret, id = made.json()["key"], made.json()["id"]
    stored = await scene.sql("select row(k.*)::text, length(hash) from instep.api_key k where id = %s", id)
    assert secret not in stored[0][0]
    assert stored[0][1] == 32
    listed = (await administrator.get("/api/v1/keys")).text
    assert id in listed
    assert secret not in listed
    client = await scene.client(None, authorization=f"Bearer {secret}")
    assert (await client.get("/api/v1/derivations")).status_code == 200
    assert (await scene.sql("select used_at is not null from instep.api_key where id = %s", id)) == [(True,)]
    assert (await administrator.delete(f"/api/v1/keys/{id}")).json()["revoked_at"]
    assert (await client.get("/api/v1/derivations")).status_code == 401


async def test_a_key_that_another_process_revoked_is_noticed(scene: Served) -> None:
    client = await scene.client("reader")
    assert (await client.get("/api/v1/derivations")).status_code == 200
    await scene.sql("update instep.api_key set revoked_at = now() where role = 'reader'")
    await asyncio.sleep(REMEMBERED_SECONDS + 0.1)
    assert (await client.get("/api/v1/derivations")).status_code == 401


async def test_a_browser_keeps_its_key_in_a_cookie(scene: Served) -> None:
    client = await scene.client(None, accept="text/html")
    wrong = await client.post("/key", data={"key": "instep_nope"})
    assert (wrong.status_code, "opens nothing here" in wrong.text) == (401, True)
    assert COOKIE not in client.cookies
    answer = await client.post("/key", data={"key": await scene.key("reader"), "to": "//evil.example/"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert (await client.get("/")).status_code == 200
    await client.post("/key/forget")
    assert (await client.get("/")).status_code == 303


async def test_giving_a_key_leads_to_no_other_site(scene: Served) -> None:
    client, key = await scene.client(None), await scene.key("reader")
    for to in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"):
        answer = await client.post("/key", data={"key": key, "to": to})
        assert answer.headers["location"] == "/", to
    answer = await client.post("/key", data={"key": key, "to": "/toys?a=b"})
    assert answer.headers["location"] == "/toys?a=b"


async def test_a_page_of_another_site_cannot_use_the_cookie(scene: Served) -> None:
    client = await scene.client(None)
    client.cookies.set(COOKIE, await scene.key("operator"), domain="127.0.0.1")
    body = {"reason": "load"}
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        answer = await client.post("/api/v1/pauses", json=body, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:instep:problem:origin"), headers
    assert await scene.sql("select * from instep.pause") == []
    own = {"origin": scene.url, "sec-fetch-site": "same-origin"}
    assert (await client.post("/api/v1/pauses", json=body, headers=own)).status_code == 201


async def test_no_other_origin_is_let_in(scene: Served) -> None:
    client = await scene.client()
    answer = await client.options(
        "/api/v1/derivations",
        headers={"origin": "https://evil.example", "access-control-request-method": "GET"},
    )
    assert answer.status_code == 405
    answer = await client.get("/api/v1/derivations", headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


# Limits


async def test_a_key_that_asks_too_often_is_told_when_to_come_again(dsn: str, tmp_path: Path) -> None:
    async with served(dsn, tmp_path, tables=False, serve_requests_per_minute="60") as scene:
        busy, other = await scene.client("reader"), await scene.client("member")
        answers = [await busy.get("/api/v1/derivations") for _ in range(15)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 3 <= len(refused) <= 5  # ten at once, and one for each second that it took
        assert refused[0].json()["type"] == "urn:instep:problem:limit"
        assert int(refused[0].headers["retry-after"]) >= 1
        assert (await other.get("/api/v1/derivations")).status_code == 200


async def test_keys_that_open_nothing_are_slowed_down(dsn: str, tmp_path: Path) -> None:
    async with served(dsn, tmp_path, tables=False) as scene:
        wrong = await scene.client(None, authorization="Bearer nope")
        statuses = [(await wrong.get("/api/v1/derivations")).status_code for _ in range(70)]
        assert set(statuses) == {401, 429}
        right = await scene.client("reader")
        assert (await right.get("/api/v1/derivations")).status_code == 200


# Tables


async def test_a_key_for_one_table_sees_no_other(scene: Served) -> None:
    client = await scene.client("operator", "articles")
    for path in ("search/secrets?q=chess", "derivations/secrets.embed", "explain/secrets.embed/one", "dead/secrets",
                 "tables/secrets", "derivations/secrets.embed/entries", "derivations/secrets.embed/series",
                 "events?name=secrets", "search/nope?q=chess", "dead/secrets.embed", "dead/secrets/one",
                 "derivations/secrets.embed/runs", "derivations/secrets.embed/plan"):  # fmt: skip
        answer = await client.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:instep:problem:table"), path
    for method, path, body in (
        ("POST", "derivations/secrets.embed/run", None), ("POST", "dead/secrets/replay", {"all": True}),
        ("POST", "dead/secrets/discard", {"all": True, "reason": "x"}), ("POST", "pauses/secrets", {"reason": "x"}),
        ("POST", "pauses", {"reason": "x"}), ("DELETE", "pauses", None), ("DELETE", "tables/secrets", None),
        ("POST", "tables/plan", {"table": "notes", "text": ["body"]}), ("GET", "table-candidates", None),
    ):  # fmt: skip
        answer = await client.request(method, f"/api/v1/{path}", json=body)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:instep:problem:table"), path
    for path in ("derivations", "dead", "tables", "health", "pauses"):
        assert "secrets" not in (await client.get(f"/api/v1/{path}")).text, path
    assert "secrets" not in (await client.get("/metrics")).text
    assert "secrets" not in (await client.get("/", headers={"accept": "text/html"})).text
    assert (await client.get("/api/v1/search/articles?q=chess")).json()["results"]
    limited = await scene.client("administrator", "articles")
    assert (await limited.post("/api/v1/keys", json={"role": "administrator"})).status_code == 403
    assert (await limited.get("/api/v1/keys")).status_code == 403


# Demo mode


async def test_a_demo_is_open_on_this_machine_alone(dsn: str, tmp_path: Path) -> None:
    async with served(dsn, tmp_path, tables=False, serve_demo="true") as scene:
        client = await scene.client(None)
        assert (await client.get("/api/v1/keys")).status_code == 200
        # A page of another site that leads its own name to 127.0.0.1.
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[::ffff:203.0.113.9]"):
            assert (await client.get("/api/v1/derivations", headers={"host": host})).status_code in (
                400,
                401,
            ), host
        for header in ("x-forwarded-for", "forwarded", "via"):  # a proxy on this machine lets others in
            assert (await client.get("/api/v1/derivations", headers={header: "x"})).status_code == 401, header
        answer = await client.post(
            "/api/v1/pauses", json={"reason": "x"}, headers={"origin": "https://evil.example"}
        )
        assert answer.status_code == 403


async def test_without_demo_mode_this_machine_needs_a_key_too(scene: Served) -> None:
    client = await scene.client(None)
    answer = await client.get("/api/v1/derivations")
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:instep:problem:no-key")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_demo_that_others_could_reach_is_refused(host: str, tmp_path: Path) -> None:
    settings = Settings.load(
        flags={"data_dir": str(tmp_path), "serve_demo": "true", "serve_host": host}, environ={}
    )
    with pytest.raises(Refused, match="open to everybody"):
        create_app(settings)


def test_which_names_are_of_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost")))
    assert not any(
        map(is_loopback, ("", "0.0.0.0", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"))
    )


# What must not come through


async def test_every_answer_keeps_a_browser_safe(scene: Served) -> None:
    client = await scene.client()
    for path in ("/", "/health", "/api/v1/derivations", "/nope", "/assets/web/instep.css", "/key"):
        answer = await client.get(path, headers={"accept": "text/html"})
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


PATHS = (
    "/assets/web/../../../../etc/passwd", "/assets/web/%2e%2e/%2e%2e/pages.py", "/assets/web/..%2fpages.py",
    "/assets/../health", "/assets/web/instep.css%00.js", "/assets/web//etc/passwd", "/assets/web/__init__.py",
    "/assets/nope/instep.css", "/assets/web/", "//health/..", "/%2e%2e/%2e%2e/etc/passwd", "/api/v1/../../etc/passwd",
)  # fmt: skip


async def test_no_path_leads_out_of_the_assets(scene: Served) -> None:
    """Sent as they are: httpx would tidy them up first."""
    parts = urlsplit(scene.url)
    for path in PATHS:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert answer.split()[1] in (b"404", b"400"), (path, answer)
        assert b"root:" not in answer, path
        assert b"import" not in answer, path


INJECTIONS = (
    "section = 'games' or 1=1; drop table articles", "section = 'x' union select body from secrets",
    "pg_sleep(10) is null", "section = (select body from secrets limit 1)", "exists (select 1 from secrets)",
    "section = 'games'--", "section = 'a' /* x */ or true", "1 = 1", "secret = 'x'", "section::text = 'x'",
    "current_user = 'postgres'", "section = E'\\'' or true", "title = 'Chess'",
)  # fmt: skip


async def test_a_filter_takes_nothing_but_its_columns(scene: Served) -> None:
    client = await scene.client("reader")
    for where in INJECTIONS:
        query = {"q": "chess", "where": where, "mode": "lexical"}
        answer = await client.get("/api/v1/search/articles", params=query)
        body = answer.json()
        if answer.status_code == 200:  # a comment is no part of a condition: what is left holds as it stands
            assert {one["fields"]["title"] for one in body["results"]} <= {"Chess", "Stockfish"}, where
        else:
            assert (answer.status_code, body["type"]) == (400, "urn:instep:problem:refused"), where
        assert "nobody may read" not in answer.text, where
        assert await scene.sql("select count(*) from articles") == [(5,)]


async def test_a_value_in_a_filter_is_a_value(scene: Served) -> None:
    client = await scene.client("reader")
    quoted = "section = 'ga''mes; drop table articles'"
    answer = await client.get(
        "/api/v1/search/articles", params={"q": "chess", "where": quoted, "mode": "lexical"}
    )
    assert (answer.status_code, answer.json()["results"]) == (200, [])


async def test_stored_html_is_given_as_text(scene: Served) -> None:
    html = "<img src=x onerror=alert(1)> chess <script>alert(2)</script>"
    await scene.sql("insert into articles (title, body) values (%s, %s)", html, html)
    await ran(scene.instep, "articles")
    client = await scene.client("reader")
    answer = await client.get("/api/v1/search/articles", params={"q": "chess", "mode": "lexical"})
    assert answer.headers["content-type"] == "application/json"
    (found,) = [one for one in answer.json()["results"] if one["fields"]["title"] == html]
    assert "chess" in [found["text"][start:end] for start, end in found["highlights"]]
    letters = await client.get("/api/v1/explain/articles.embed/" + str(found["key"]))
    assert letters.headers["content-type"] == "application/json"


async def test_a_body_that_is_too_large_is_refused(dsn: str, tmp_path: Path) -> None:
    async with served(dsn, tmp_path, tables=False, serve_body_bytes="1000") as scene:
        client = await scene.client()
        body = b'{"reason": "' + b"x" * 2000 + b'"}'

        async def in_pieces() -> AsyncIterator[bytes]:  # no content-length to judge by
            for at in range(0, len(body), 500):
                yield body[at : at + 500]

        for content in (body, in_pieces()):
            answer = await client.post(
                "/api/v1/pauses", content=content, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, answer.json()["type"]) == (413, "urn:instep:problem:too-large")
        assert (await client.get("/health")).status_code == 200
        assert await scene.sql("select * from instep.pause") == []


async def test_slow_clients_hold_up_nobody(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 1.0)
    async with served(dsn, tmp_path, tables=False, serve_body_seconds="1") as scene:
        parts, key = urlsplit(scene.url), await scene.key("operator")
        silent = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(100)]
        for _, writer in silent[:50]:  # these begin a request, and never end its headers
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        head = (
            f"POST /api/v1/pauses HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
            "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(head.encode())
        client = await scene.client()
        began = time.monotonic()
        assert (await client.get("/api/v1/derivations")).status_code == 200
        assert time.monotonic() - began < 3
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
        for silent_reader, _ in silent:
            assert await asyncio.wait_for(silent_reader.read(), 10) == b""
        for _, each in [*silent, (reader, writer)]:
            each.close()


async def test_a_client_that_goes_away_leaves_nothing_behind(scene: Served) -> None:
    parts, key = urlsplit(scene.url), await scene.key("reader")
    for _ in range(20):
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 5) as gone:
            gone.sendall(
                f"GET /api/v1/search/articles?q=chess HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()
            )
    client: httpx.AsyncClient = await scene.client("reader")
    for _ in range(20):
        assert (await client.get("/api/v1/search/articles?q=chess")).status_code == 200
