"""The core's part of the API, under /api/v1."""

from instep.server.api import derivations
from instep.web.routing import Routes

API: tuple[Routes, ...] = (derivations.routes,)
