"""What a person would write by hand for the same guarantees, without the engine: `queue_loop full|bare DSN WAVE`.

full: the statements of a no-op wave, one after the other, in the fewest round trips: claim with a token, below the last
claim of the run; load content and hash; then in one transaction lock the entries, stamp, remove those that are still held
under the token in the generation that was claimed. The next wave is claimed and loaded while the last is committed, on two
connections, with asynchronous commits. No heartbeat, no renewal, no attempts, no halving, no look at the target's state, no stamps read
beforehand, no absorb, no sweep: a lost connection ends it, a bad row ends it, a stopped worker's entries wait for
their leases.
bare: claim and removal alone, which is no protocol: nothing says what was made from what.
It works the tables that `noop.create` made, so that tables and indexes are the same as the engine's.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from typing import Any

import orjson
import psycopg
import uvloop

CLAIM = """update instep.outbox_items_noop set lease_until = now() + interval '900 s', token = %s, claims = claims + 1
  where ctid = any(array(select ctid from instep.outbox_items_noop
    where target = 'none' and failed_at is null and not_before is null and (lease_until is null or lease_until < now())
      and (sort_key, key_1) < (%s::timestamptz, %s::bigint)
    order by sort_key desc, key_1 desc limit %s for update skip locked))
  returning key_1, generation, sort_key::text"""
TOP = ("infinity", 2**63 - 1)
LOAD = "select id, title, instep.content_hash(instep.part(title)) from items where id = any(%s::bigint[])"
LOCK = """select key_1, token, generation from instep.outbox_items_noop
  where target = 'none' and key_1 = any(%s::bigint[]) order by key_1 for update"""
STAMP = """insert into instep.stamp_items_noop (key_1, target, content_hash)
  select k, 'none', h from unnest(%s::bigint[], %s::bytea[]) u(k, h) order by k
  on conflict (key_1, target) do update set content_hash = excluded.content_hash, stamped_at = now()"""
REMOVE = "delete from instep.outbox_items_noop where target = 'none' and key_1 = any(%s::bigint[])"


def array(values: Any) -> str:
    """psycopg adapts a list element by element; the text takes an eighth of that."""
    return "{" + ",".join(values) + "}"


class Loop:
    def __init__(self, reader: Any, writer: Any, wave: int, full: bool) -> None:
        self.reader, self.writer, self.wave, self.full = reader, writer, wave, full
        self.done, self.cursor = 0, TOP

    async def next(self) -> Any:
        token = secrets.randbits(62)
        entries = await self.claim(token)
        if not entries and self.cursor != TOP:
            self.cursor = TOP
            entries = await self.claim(token)
        if entries:
            last = min(entries, key=lambda entry: entry[0])  # all sort keys are equal here
            self.cursor = (last[2], last[0])
        keys = array(str(entry[0]) for entry in entries)
        rows = []
        if entries and self.full:
            rows = await (await self.reader.execute(LOAD, (keys,), binary=True)).fetchall()
        return entries and (token, entries, keys, rows)

    async def claim(self, token: int) -> Any:
        """Each below the last one, so that what is deleted and not yet vacuumed is not walked again."""
        return await (
            await self.reader.execute(CLAIM, (token, *self.cursor, self.wave), binary=True)
        ).fetchall()

    async def commit(self, token: int, entries: Any, keys: str, rows: Any) -> None:
        writer = self.writer
        if not self.full:
            await writer.execute(REMOVE, (keys,))
            return
        async with writer.transaction():
            held = await (await writer.execute(LOCK, (keys,), binary=True)).fetchall()
            claimed = {entry[0]: entry[1] for entry in entries}
            mine = {key for key, owner, generation in held if owner == token and claimed[key] == generation}
            rows = [row for row in rows if row[0] in mine]
            hashes = array(f'"\\\\x{row[2].hex()}"' for row in rows)
            await writer.execute(STAMP, (array(str(row[0]) for row in rows), hashes))
            await writer.execute(REMOVE, (array(map(str, mine)),))

    async def run(self) -> None:
        committing = None
        wave = await self.next()
        while wave:
            following = asyncio.create_task(self.next())
            if committing:
                await committing
            committing = asyncio.create_task(self.commit(*wave))
            self.done += len(wave[1])
            wave = await following
        if committing:
            await committing


async def main(mode: str, dsn: str, wave: int) -> None:
    reader, writer = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(2)]
    for conn in (reader, writer):
        await conn.execute("set synchronous_commit = off")
    cpu, began = time.process_time(), time.time()
    loop = Loop(reader, writer, wave, mode == "full")
    await loop.run()
    print(
        orjson.dumps(
            {"rows": loop.done, "began": began, "ended": time.time(), "cpu": time.process_time() - cpu}
        ).decode()
    )
    await reader.close()
    await writer.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
