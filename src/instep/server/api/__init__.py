"""The core's part of the API, under /api/v1."""

from instep.server.api import dead, derivations, events, explain, keys, pauses, search
from instep.web.routing import Routes

API: tuple[Routes, ...] = (
    derivations.routes,
    dead.routes,
    explain.routes,
    search.routes,
    events.routes,
    pauses.routes,
    keys.routes,
)
