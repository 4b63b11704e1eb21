"""Steady offered load: `writer DSN TABLE COLUMN RATE CHANGES FIRST ROWS`, a transaction for each changed row.

Open loop: change number n is due n / RATE seconds after the first, however long the ones before it took. Rows are taken
all over the table, each once: number n changes row (n * STRIDE) mod ROWS. It prints how late its writes were.
"""

from __future__ import annotations

import asyncio
import sys
import time

import orjson
import psycopg
import uvloop
from psycopg import sql

STRIDE = 7919  # a prime that divides no number of rows in use


def row(number: int, rows: int) -> int:
    return number * STRIDE % rows + 1


CONNECTIONS = 8  # an application's: one commit that waits for the disk must not hold up the others


async def main(dsn: str, table: str, column: str, rate: float, changes: int, first: int, rows: int) -> None:
    change = sql.SQL("update {table} set {column} = {column} || ' changed' where id = %s").format(
        table=sql.Identifier(table), column=sql.Identifier(column)
    )
    free: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        text = change.as_bytes(conn)
        free.put_nowait(conn)
    late: list[float] = []

    async def write(number: int, due: float) -> None:
        conn = await free.get()
        try:
            await conn.execute(text, (row(number, rows),))
        finally:
            free.put_nowait(conn)
        late.append(time.monotonic() - due)

    began = time.monotonic()
    async with asyncio.TaskGroup() as writing:
        for number in range(first, first + changes):
            due = began + (number - first) / rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            writing.create_task(write(number, due))
    seconds = time.monotonic() - began
    late.sort()
    said = {"seconds": seconds, "rate": changes / seconds, "late": late[int(len(late) * 0.99)]}
    print(orjson.dumps(said).decode())
    while not free.empty():
        await free.get_nowait().close()


if __name__ == "__main__":
    given = sys.argv[1:]
    uvloop.run(main(given[0], given[1], given[2], float(given[3]), *map(int, given[4:])))
