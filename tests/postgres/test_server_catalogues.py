"""A catalogue that the server has never heard of plugs in by its record, found by its entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from server_scene import served
from toy_catalogue import catalogue

from instep import registry
from instep.errors import Refused
from instep.registry import Catalogue
from instep.server.factory import create_app
from instep.settings import Settings


async def test_a_catalogue_registers_a_route_a_page_and_a_navigation_entry(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / "toy-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[instep.catalogues]\ntoy = toy_catalogue:catalogue\n")
    monkeypatch.setattr(sys, "path", [str(installed.parent), *sys.path])
    found = registry.find()
    assert {"tables", "toy"} <= found.keys()
    async with served(dsn, tmp_path / "data", found=list(found.values()), tables=False) as scene:
        member, reader = await scene.client("member"), await scene.client("reader")
        assert (await member.get("/api/v1/toys")).json() == {"toys": ["from the database"], "for": "member"}
        assert (await reader.get("/api/v1/toys")).status_code == 403
        assert "/api/v1/toys" in (await reader.get("/api/v1/openapi.json")).json()["paths"]
        page = await member.get("/toys", headers={"accept": "text/html"})
        assert page.status_code == 200
        assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
        assert '<a href="/toys" aria-current="page">Toys</a>' in page.text
        src = page.text.partition('<img src="')[2].partition('"')[0]
        assert (await member.get(src)).headers["content-type"] == "image/svg+xml"
        assert "/toys" not in (await reader.get("/", headers={"accept": "text/html"})).text


@pytest.mark.parametrize(
    "record", [Catalogue("odd", routes="builtins:dict"), Catalogue("odd", pages="builtins:dict")]
)
def test_what_a_catalogue_may_not_register_is_refused(record: Catalogue, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        create_app(Settings.load(flags={"data_dir": str(tmp_path)}, environ={}), found=[record])


def test_pages_under_another_name_are_refused(tmp_path: Path) -> None:
    record = Catalogue("other", pages=catalogue.pages)
    with pytest.raises(Refused, match="named 'other'"):
        create_app(Settings.load(flags={"data_dir": str(tmp_path)}, environ={}), found=[record])
