"""The guard of every route: whose request it is, whether that role may, and whether it asks too often.

It stands before anything of the request's body is read. A key comes as `Authorization: Bearer …`, or from a browser
in a cookie that no script reads and no other site's request carries. In demo mode, and in that alone, a request without
a key is everybody's: only from this machine, and only under one of its own names (a page of another site may lead its
own name to 127.0.0.1). Tests: postgres/test_server_guard.py.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import ip_address
from math import ceil
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from instep.app import Instep
from instep.clock import Clock
from instep.web import keys
from instep.web.limits import Limits
from instep.web.problems import Problem
from instep.web.roles import DEMO, NOBODY, Caller, Role

COOKIE = "instep_key"
REMEMBERED_SECONDS = (
    2.0  # for so long a key is not looked up again: so late a revocation elsewhere is noticed
)
MOST_REMEMBERED = 1_000
FAILURES_PER_MINUTE = 60  # of one address, with keys that open nothing
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
SAFE = {"GET", "HEAD", "OPTIONS"}


class Guard:
    def __init__(self, app: Instep, clock: Clock, *, demo: bool, per_minute: int) -> None:
        self._app, self._clock, self._demo = app, clock, demo
        self._limits = Limits(per_minute, clock)
        self._failures = Limits(FAILURES_PER_MINUTE, clock, burst=60)
        self._remembered: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()  # by the key's digest

    async def admit(self, request: HTTPConnection, role: Role) -> Caller:
        """The caller of a request to a route of this role. Raises Problem where it may not pass."""
        if role is Role.PUBLIC:
            return NOBODY
        caller = await self.caller(request)
        if caller is None:
            raise Problem(
                "no-key",
                "this needs a key, and the request has none that is valid",
                "send it as `Authorization: Bearer …`; instep keys create makes one",
                {"www-authenticate": 'Bearer realm="instep"'},
            )
        wait = self._limits.take(caller.id)
        if wait:
            raise _too_often("this key sends more requests than it may", wait)
        if not caller.role.includes(role):
            raise Problem(
                "role", f"this needs the role {role}, the key has {caller.role}", "use a key of that role"
            )
        return caller

    async def caller(self, request: HTTPConnection) -> Caller | None:
        """Whose request it is, by its key; None where it has none that is valid."""
        secret = _bearer(request)
        if secret is None:
            _refuse_other_sites(request)
            secret = request.cookies.get(COOKIE)
        if secret:
            found = await self._lookup(secret, request)
            if found is not None:
                return found
        return DEMO if self._demo and _is_local(request) else None

    async def _lookup(self, secret: str, request: HTTPConnection) -> Caller | None:
        digest = keys.digest(secret)
        known = self._remembered.get(digest)
        now = self._clock.monotonic()
        if known is not None and known[1] > now:
            return known[0]
        self._remembered.pop(digest, None)
        async with self._app.database.connection() as conn:
            found = await keys.caller(conn, secret)
        if found is None:
            wait = self._failures.take(request.client.host if request.client else "")
            if wait:
                raise _too_often("too many keys from this address open nothing", wait)
            return None
        self._remembered[digest] = (found, now + REMEMBERED_SECONDS)
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return found

    def forget(self) -> None:
        """A key was revoked here: look all up again."""
        self._remembered.clear()


def check_table(caller: Caller, name: str) -> None:
    """Raises Problem where the key is limited to other tables; the same whether `name` is there or not."""
    if not caller.sees(name):
        raise Problem(
            "table",
            f"this key is not for {name.partition('.')[0]!r}",
            "use a key that is not limited, or for it",
        )


def check_unlimited(caller: Caller) -> None:
    """For what concerns more than single tables."""
    if caller.tables is not None:
        raise Problem(
            "table", "this key is for single tables, and this concerns all", "use a key without a limit"
        )


def is_loopback(host: str) -> bool:
    """Of an address or a host name, with or without brackets."""
    host = host.strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_local(request: HTTPConnection) -> bool:
    if any(name in request.headers for name in FORWARDED):  # a proxy is on this machine, who asks it is not
        return False
    peer = request.client.host if request.client else ""
    named = urlsplit("//" + request.headers.get("host", "")).hostname or ""
    return is_loopback(peer) and is_loopback(named)


def _bearer(request: HTTPConnection) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def _refuse_other_sites(request: HTTPConnection) -> None:
    """What changes something and rests on a cookie, or on being on this machine, must come from our own pages."""
    if request.scope.get("method", "GET") in SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site not in (None, "same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    ):
        raise Problem(
            "origin", "a page of another site sent this request", "send a key in the Authorization header"
        )


def _too_often(detail: str, wait: float) -> Problem:
    seconds = max(1, ceil(wait))
    return Problem("limit", detail, f"try again in {seconds} s", {"retry-after": str(seconds)})
