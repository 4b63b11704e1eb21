"""The catalogues that are installed, found by entry points and loaded on use.

The core knows no catalogue by name. A catalogue's record holds strings only, so that reading all records imports
nothing: what a string names is imported when it is used (test: unit/test_cli_startup.py).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "instep.catalogues"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a catalogue brings. Each value is "module:name" or a resource path ("package/folder"), or empty."""

    name: str
    migrations: str = ""
    settings: str = ""
    derivations: str = ""
    jobs: str = ""
    checks: str = ""
    chores: str = ""
    commands: str = ""
    routes: str = ""
    docs: str = ""


@cache
def catalogues() -> tuple[Catalogue, ...]:
    """All installed catalogues, by name."""
    found: list[Catalogue] = [entry.load() for entry in entry_points(group=GROUP)]
    return tuple(sorted(found, key=lambda catalogue: catalogue.name))


def load(reference: str) -> Any:
    """What "module:name" names. Raises ImportError or AttributeError: a catalogue's record is wrong."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
