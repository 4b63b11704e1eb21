"""Everything you derive from PostgreSQL, kept in step with it.

Public names are loaded when they are first used, so that `import instep` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instep.app import Instep as Instep
    from instep.errors import InstepError as InstepError
    from instep.errors import Refused as Refused
    from instep.settings import Settings as Settings

__version__ = "0.1.0"

_PUBLIC = {
    "Instep": "instep.app",
    "InstepError": "instep.errors",
    "Refused": "instep.errors",
    "Settings": "instep.settings",
}

__all__ = ["Instep", "InstepError", "Refused", "Settings"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'instep' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
