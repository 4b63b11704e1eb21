"""The queue of one derivation and target: claim, renew, release, park, fail.

Invariants kept here (ENGINE.md):
- a claim locks outbox rows only, and is fenced by a random token (test_outbox.py::test_a_stale_holder_changes_nothing);
- leases are judged by the database's clock (test_outbox.py::test_leases_are_judged_by_the_database);
- attempts grow by item failures alone (test_failure_table.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from instep import failpoints
from instep.clock import Clock
from instep.database.statements import Statements, compose, fragment
from instep.database.transactions import INDEX_ONLY, WORKER, transaction
from instep.engine.declaration import Columns, Declaration, Key, Target, fragments
from instep.engine.ports import Conn, Entry

_FILE = ("instep.engine", "outbox.sql")
SUSPECT_CLAIMS = 5  # claims without any result after which an entry is run alone, last
OLDEST_EVERY = 8  # one claim in so many takes the oldest, so that new rows cannot starve old ones
RESTART_EVERY = (
    8  # claims in one order after which its cursor goes back to the start, for what arrived meanwhile
)
BACKOFF_SECONDS = 4.0  # before the second try; doubles with each attempt


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry that failed when it was tried alone."""

    entry: Entry
    kind: str
    message: str
    deterministic: bool
    hash: bytes | None  # of the content that was loaded; None where nobody loaded it


@dataclass(frozen=True, slots=True)
class Recorded:
    failed: int
    dead: int
    given_back: int
    superseded: int


class Outbox:
    """One outbox as one worker sees it: it keeps the cursors of its run."""

    def __init__(
        self,
        declaration: Declaration,
        target: Target,
        clock: Clock,
        *,
        lease_seconds: float,
        max_attempts: int,
    ) -> None:
        columns = Columns(declaration.source.key)
        self.columns, self.target, self.clock = columns, target, clock
        self.lease_seconds, self.max_attempts = lease_seconds, max_attempts
        self._sql = Statements(
            *_FILE,
            **fragments(declaration),
            key_failures=columns.unnest(
                ("generation", "bigint"), ("kind", "text"), ("message", "text"),
                ("deterministic", "boolean"), ("hash", "bytea"), ("jitter", "float8"),
            ),
        )  # fmt: skip
        self._sql |= _claims(declaration)
        self._cursor: dict[str, Entry | None] = {"newest": None, "oldest": None}
        self._claims = 0
        self._since = {"newest": 0, "oldest": 0}  # claims in each order

    async def claim(self, conn: Conn, limit: int, token: int) -> list[Entry]:
        """Up to `limit` entries under `token`; empty only when nothing can be claimed but suspects."""
        self._claims += 1
        order = "oldest" if self._claims % OLDEST_EVERY == 0 else "newest"
        self._since[order] += 1
        if self._since[order] % RESTART_EVERY == 0:
            self._cursor[order] = None
        entries = await self._claim(conn, order, limit, token)
        if not entries and self._cursor[order] is not None:
            self._cursor[order] = None
            entries = await self._claim(conn, order, limit, token)
        return entries

    async def claim_suspect(self, conn: Conn, token: int) -> list[Entry]:
        """One entry that gave no result five times, to be run alone; and buries those that were run alone in vain.
        Called only when `claim` came back empty: suspects are not in an index of their own."""
        async with transaction(conn, WORKER, *INDEX_ONLY):
            rows = await self._fetch(
                conn, "claim_suspect", lease=self.lease_seconds, token=token, suspect=SUSPECT_CLAIMS
            )
            failpoints.reach("claim.suspect")
        return [self._entry(row) for row in rows]

    async def bury_lost(self, conn: Conn) -> int:
        """Dead letters of kind `lost`: committed synchronously, as every death is."""
        async with transaction(conn, *INDEX_ONLY):
            buried = await self._fetch(conn, "bury_lost", suspect=SUSPECT_CLAIMS, limit=1000)
            failpoints.reach("claim.buried")
        return len(buried)

    async def let_in(self, conn: Conn, limit: int = 5000) -> int:
        """Parked entries that are due become claimable."""
        async with transaction(conn, WORKER, *INDEX_ONLY):
            let_in = await self._fetch(conn, "let_in", limit=limit)
            failpoints.reach("claim.let_in")
        return len(let_in)

    async def renew(self, conn: Conn, token: int, keys: Sequence[Key]) -> int:
        """Lengthen the lease of what is still ours; the number tells how many are."""
        failpoints.reach("renew.begun")
        renewed = await self._by_token(
            conn, "renew", token, keys, point="renew.changed", lease=self.lease_seconds
        )
        failpoints.reach("renew.committed")
        return renewed

    async def release(self, conn: Conn, token: int, keys: Sequence[Key]) -> int:
        """Give back, uncounted; the number that were still ours. An outage, a shutdown, too much for one wave."""
        failpoints.reach("release.begun")
        released = await self._by_token(conn, "release", token, keys, point="release.changed")
        failpoints.reach("release.committed")
        return released

    async def park(self, conn: Conn, token: int, keys: Sequence[Key]) -> int:
        """Give back what ran out of time, not to be claimed before its lease would have ended; the number still ours."""
        failpoints.reach("park.begun")
        parked = await self._by_token(conn, "park", token, keys, point="park.changed")
        failpoints.reach("park.committed")
        return parked

    async def fail(self, conn: Conn, token: int, failures: Sequence[Failure]) -> Recorded:
        """Record failures of entries that were tried alone, with the guards of a commit."""
        keys = self.columns.arrays(f.entry.key for f in failures)
        failpoints.reach("fail.begun")
        async with transaction(conn):
            await self._fetch(conn, "lock", token=token, **keys)
            failpoints.reach("fail.locked")
            rows = await self._fetch(
                conn,
                "fail",
                token=token,
                max_attempts=self.max_attempts,
                backoff=BACKOFF_SECONDS,
                generation=[f.entry.generation for f in failures],
                kind=[f.kind for f in failures],
                message=[f.message for f in failures],
                deterministic=[f.deterministic for f in failures],
                hash=[f.hash for f in failures],
                jitter=[self.clock.uniform(0.8, 1.2) for _ in failures],
                **keys,
            )
            failpoints.reach("fail.recorded")
        failpoints.reach("fail.committed")
        given_back = sum(row[-2] for row in rows)
        dead = sum(row[-1] for row in rows)
        return Recorded(len(rows) - given_back - dead, dead, given_back, len(failures) - len(rows))

    async def waiting(self, conn: Conn, limit: int = 1_000_000) -> int:
        """Entries that are no dead letters, leased and parked ones too, counted up to `limit`."""
        return int((await self._fetch(conn, "waiting", limit=limit))[0][0])

    async def _claim(self, conn: Conn, order: str, limit: int, token: int) -> list[Entry]:
        cursor = self._cursor[order]
        values: dict[str, Any] = {
            "lease": self.lease_seconds,
            "token": token,
            "suspect": SUSPECT_CLAIMS,
            "limit": limit,
        }
        name = f"claim_{order}"
        if cursor is not None:
            name += "_after"
            values |= {"after": cursor.sort_key, **self.columns.one(cursor.key)}
        failpoints.reach("claim.begun")
        async with transaction(conn, WORKER, *INDEX_ONLY):
            rows = await self._fetch(conn, name, **values)
            failpoints.reach("claim.taken")
        failpoints.reach("claim.committed")
        entries = [self._entry(row) for row in rows]
        if entries:
            self._cursor[order] = entries[-1]
        return entries

    async def _by_token(
        self,
        conn: Conn,
        name: str,
        token: int,
        keys: Sequence[Key],
        *,
        point: failpoints.Point,
        **values: Any,
    ) -> int:
        arrays = self.columns.arrays(keys)
        async with transaction(conn, WORKER, *INDEX_ONLY):
            await self._fetch(conn, "lock", token=token, **arrays)
            changed = await self._fetch(conn, name, token=token, **values, **arrays)
            failpoints.reach(point)
        return len(changed)

    async def _fetch(self, conn: Conn, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return await (await conn.execute(self._sql[name], {"target": self.target.name, **values})).fetchall()

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        width = len(self.columns.names)
        return Entry(row[:width], *row[width:])


def _claims(declaration: Declaration) -> dict[str, bytes]:
    """The claim's statement in each order, from the start and (`_after`) from a cursor on."""
    columns, shared = Columns(declaration.source.key), fragments(declaration)
    statements: dict[str, bytes] = {}
    for name, order, beyond in (("newest", "desc", "<"), ("oldest", "asc", ">")):
        ordered = {
            "order": fragment(order),
            "key_ordered": columns.listed(order=order),
            "key_c_ordered": columns.listed("c", order),
        }
        past = compose(*_FILE, "past_cursor", **shared, beyond=fragment(beyond))
        for suffix, past_cursor in (("", fragment("")), ("_after", past)):
            statement = compose(*_FILE, "claim", **shared, **ordered, past_cursor=past_cursor)
            statements[f"claim_{name}{suffix}"] = statement.as_bytes(None)
    return statements
