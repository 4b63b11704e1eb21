"""Catalogues: found by entry points, loaded on use. The core knows none by name.

A catalogue's record holds strings alone, so that finding all of them imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from instep.errors import Refused

GROUP = "instep.catalogues"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Where a catalogue's parts are: "module:name", or a resource path for files; empty where it has none."""

    name: str
    migrations: str = ""
    settings: str = ""
    derivations: str = ""
    jobs: str = ""
    checks: str = ""
    chores: str = ""
    commands: str = ""
    routes: str = ""  # a web.routing.Routes, or several
    pages: str = ""  # a web.pages.Pages: its routes, templates, assets and navigation entries
    docs: str = ""


def find() -> Mapping[str, Catalogue]:
    """All installed catalogues by name, in order of name. Raises Refused for an entry point that gives none."""
    found: dict[str, Catalogue] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        catalogue = point.load()
        if not isinstance(catalogue, Catalogue) or catalogue.name != point.name:
            raise Refused(f"entry point {point.name} = {point.value} in {GROUP} is no catalogue of that name")
        found[point.name] = catalogue
    return found


@cache
def catalogues() -> tuple[Catalogue, ...]:
    """All installed catalogues, in order of name; looked for once in a process."""
    return tuple(find().values())


def load(reference: str) -> Any:
    """The object of a reference "module:name". Raises Refused for one that leads nowhere."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused(f"{reference!r} leads nowhere: {error}") from error
