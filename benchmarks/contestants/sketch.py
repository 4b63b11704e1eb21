"""The design's `pipeline_sketch.py`, here against a given server: what one worker can do at all.

    sketch loop|protocol DSN URL OPTIONS

loop: read, embed, write, with no queue. protocol: claim with token, load with hash, embed, replace, stamp, fenced
removal; no failure handling. OPTIONS, letters: s parse with simdjson, a commit asynchronously, n delete nothing.
`create` makes its tables. Kept as it was written: the hand-written loop is compared with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
import time
from typing import Any

import aiohttp
import numpy as np
import orjson
import psycopg
import simdjson
import uvloop
from pgvector.psycopg import register_vector_async

WAVE, REQUEST, DIMENSIONS = 500, 32, 384
PARSER = simdjson.Parser()

SCHEMA = f"""create schema i;
create table i.outbox(id bigint, target text, sort_key timestamptz, generation int default 0,
  enqueued_at timestamptz default now(), not_before timestamptz, lease_until timestamptz, token bigint,
  attempts int default 0, failed_at timestamptz, error_kind text, last_error text,
  primary key(id, target)) with (fillfactor = 50);
create index on i.outbox(sort_key desc nulls last, id desc) where failed_at is null;
create table i.stamp(id bigint, target text, hash bytea, stamped_at timestamptz default now(), primary key(id, target));
create table i.chunk(id bigint, ordinal int, target text, text_hash bytea, text text, vec vector({DIMENSIONS}),
  primary key(id, target, ordinal));
alter table i.chunk alter column vec set storage plain;
insert into i.outbox(id, target, sort_key) select id, 't1', posted from docs order by id;
analyze i.outbox;"""
CLAIM = """with c as (select id, target from i.outbox where failed_at is null and target = 't1'
  and (lease_until is null or lease_until < now()) order by sort_key desc nulls last, id desc
  limit %s for update skip locked)
update i.outbox o set lease_until = now() + interval '300 s', token = %s from c
  where o.id = c.id and o.target = c.target returning o.id, o.generation"""
LOAD = "select id, title, body, sha256(convert_to(title || E'\\x1f' || body, 'UTF8')) from docs where id = any(%s)"
PAGE = "select id, title, body from docs where id > %s order by id limit %s"
LOCK = (
    "select id, generation, token from i.outbox where target = 't1' and id = any(%s) order by id for update"
)
COPY = "copy i.chunk(id, ordinal, target, text_hash, text, vec) from stdin (format binary)"
STAMP = """insert into i.stamp(id, target, hash) select unnest(%s::bigint[]), 't1', unnest(%s::bytea[])
  on conflict (id, target) do update set hash = excluded.hash, stamped_at = now()"""
FOUND = "select id, text as sent, vec as vector from i.chunk"


class Sketch:
    def __init__(self, mode: str, url: str, options: str, connections: tuple[Any, Any]) -> None:
        self.mode, self.url, self.options = mode, url, options
        self.reader, self.writer = connections
        self.last = self.done = 0

    def parse(self, body: bytes) -> np.ndarray:
        if "s" not in self.options:
            return np.array(orjson.loads(body), dtype=np.float32)
        document: Any = PARSER.parse(body)
        found = np.frombuffer(document.as_buffer(of_type="d"), dtype=np.float64).reshape(len(document), -1)
        found = found.astype(np.float32)
        del document  # the parser is reused only when nothing refers to its document
        return found

    async def load(self) -> Any:
        if self.mode == "loop":
            rows = await (await self.reader.execute(PAGE, (self.last, WAVE), binary=True)).fetchall()
            if rows:
                self.last = rows[-1][0]
            return rows and ([], rows, None)
        token = secrets.randbits(62)
        entries = await (await self.reader.execute(CLAIM, (WAVE, token), binary=True)).fetchall()
        rows = await (await self.reader.execute(LOAD, ([e[0] for e in entries],), binary=True)).fetchall()
        return entries and (entries, rows, token)

    async def compute(self, session: aiohttp.ClientSession, texts: list[str]) -> np.ndarray:
        async def one(part: list[str]) -> np.ndarray:
            async with session.post(f"{self.url}/embed", data=orjson.dumps({"inputs": part})) as response:
                return self.parse(await response.read())

        parts = (one(texts[at : at + REQUEST]) for at in range(0, len(texts), REQUEST))
        return np.concatenate(await asyncio.gather(*parts))

    async def commit(
        self, entries: Any, rows: Any, token: Any, texts: list[str], vectors: np.ndarray
    ) -> None:
        ids = [row[0] for row in rows]
        writer = self.writer
        async with writer.transaction():
            if self.mode == "protocol":
                state = await (await writer.execute(LOCK, ([e[0] for e in entries],), binary=True)).fetchall()
            if "n" not in self.options:
                await writer.execute("delete from i.chunk where id = any(%s) and target = 't1'", (ids,))
            async with writer.cursor().copy(COPY) as copy:
                copy.set_types(["int8", "int4", "text", "bytea", "text", "vector"])
                for row, text, vector in zip(rows, texts, vectors, strict=True):
                    digest = hashlib.sha256(text.encode()).digest()
                    await copy.write_row((row[0], 0, "t1", digest, text, vector))
            if self.mode == "protocol":
                await writer.execute(STAMP, (ids, [row[3] for row in rows]))
                claimed = dict(entries)
                mine = [id for id, generation, held in state if held == token and claimed[id] == generation]
                await writer.execute("delete from i.outbox where target = 't1' and id = any(%s)", (mine,))

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            committing = None
            loading = asyncio.create_task(self.load())
            while wave := await loading:
                loading = asyncio.create_task(self.load())
                entries, rows, token = wave
                texts = [f"{row[1]}. {row[2]}" for row in rows]
                vectors = await self.compute(session, texts)
                if committing:
                    await committing
                committing = asyncio.create_task(self.commit(entries, rows, token, texts, vectors))
                self.done += len(rows)
            if committing:
                await committing


async def create(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(SCHEMA.encode())
        await conn.execute("vacuum analyze i.outbox")


async def main(mode: str, dsn: str, url: str, options: str) -> None:
    reader, writer = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(2)]
    for conn in (reader, writer):
        await register_vector_async(conn)
        if "a" in options:
            await conn.execute("set synchronous_commit = off")
    cpu, began = time.process_time(), time.time()
    sketch = Sketch(mode, url, options, (reader, writer))
    await sketch.run()
    print(
        orjson.dumps(
            {"rows": sketch.done, "began": began, "ended": time.time(), "cpu": time.process_time() - cpu}
        ).decode()
    )
    await reader.close()
    await writer.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:5]))
