"""The tantivy index's own rules: epochs, the lock, what another process sees, and what is no index at all."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from instep.engine.declaration import KeyColumn
from instep.errors import Outage
from instep.search.columns import Column
from instep.search.engines.tantivy import TantivyIndex
from instep.search.ports import Query, document, query_terms

KEY = (KeyColumn("id", "bigint"),)
PRICE = Column("price", "number", "numeric")


def query(text):
    return Query(query_terms(text))


async def test_the_epoch_is_that_of_the_last_commit(tmp_path):
    index = TantivyIndex(tmp_path / "i", KEY)
    assert await index.epoch() is None
    await index.create(5)
    assert await index.epoch() == 5
    await index.apply(2**62, (), [document((1,), "apple")])
    assert await index.epoch() == 2**62
    assert await TantivyIndex(tmp_path / "i", KEY).epoch() == 2**62
    assert [key async for key in index.keys()] == [(1,)]  # noqa: SIM118 (the epoch's own document is none)
    assert (await index.search(query("epoch"))).total == 0
    await index.create(7)  # anew, with the writer open
    assert await index.epoch() == 7
    assert (await index.search(query("apple"))).total == 0


async def test_what_is_no_index_has_no_epoch_and_cannot_be_searched(tmp_path):
    missing = TantivyIndex(tmp_path / "none", KEY)
    with pytest.raises(Outage, match="none cannot be read"):
        await missing.search(query("a"))
    with pytest.raises(Outage, match="cannot be written"):
        await missing.apply(1, (), [])
    index = TantivyIndex(tmp_path / "i", KEY)
    await index.create(1)
    await index.apply(2, (), [document((1,), "apple")])
    await index.close()
    for store in (tmp_path / "i").glob("*.term"):
        store.unlink()
    assert await index.epoch() is None
    (tmp_path / "i" / "meta.json").write_text("junk")
    assert await index.epoch() is None
    await index.create(3)  # over the ruins
    assert await index.epoch() == 3
    assert await TantivyIndex(tmp_path / "i", KEY, [PRICE]).epoch() is None  # of another shape
    await index.drop()
    await index.drop()
    assert list(tmp_path.iterdir()) == []


async def test_keys_come_back_in_their_types(tmp_path):
    index = TantivyIndex(
        tmp_path / "i", (KeyColumn("a", "uuid"), KeyColumn("b", "text"), KeyColumn("c", "bigint"))
    )
    key = (uuid.uuid4(), 'it\'s "ö" 文', -(2**63))
    await index.create(1)
    await index.apply(2, (), [document(key, "apple")])
    (hit,) = (await index.search(query("apple"))).hits
    assert hit.key == key
    await index.apply(3, [key], ())
    assert (await index.search(query("apple"))).total == 0


HOLDER = """
import asyncio, sys
from pathlib import Path
from instep.engine.declaration import KeyColumn
from instep.search.engines.tantivy import TantivyIndex
from instep.search.ports import document

async def main():
    index = TantivyIndex(Path(sys.argv[1]), (KeyColumn("id", "bigint"),))
    await index.apply(11, (), [document((1,), "apple")])
    print("held", flush=True)
    sys.stdin.readline()
    await index.apply(12, [(1,)], [document((2,), "banana")])
    print("again", flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""


def hold(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_another_process_writes_and_is_named(tmp_path):
    index = TantivyIndex(tmp_path / "i", KEY)
    await index.create(1)
    await index.close()
    holder = hold(tmp_path / "i")
    try:
        assert holder.stdout.readline() == "held\n"
        assert (await index.search(query("apple"))).total == 1
        for doing in (index.apply(2, (), []), index.create(2), index.probe()):
            with pytest.raises(Outage, match=f"is held by process {holder.pid} on "):
                await doing
        assert await index.epoch() == 11
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "again\n"
        assert (await index.search(query("apple"))).total == 0  # readers see the other's commit at once
        assert (await index.search(query("banana"))).total == 1
        assert await index.epoch() == 12
    finally:
        holder.kill()
        holder.wait()
    await index.apply(3, (), [document((3,), "cherry")])  # a dead holder holds nothing
    assert (await index.search(query("cherry"))).total == 1


async def test_a_failed_apply_leaves_nothing_behind(tmp_path):
    index = TantivyIndex(tmp_path / "i", KEY, [PRICE])
    await index.create(1)
    with pytest.raises((Outage, TypeError)):
        await index.apply(2, (), [document((1,), "apple"), document((2,), "pear", {"price": "no number"})])
    assert await index.epoch() == 1
    await index.apply(3, (), [document((3,), "plum")])
    assert [key async for key in index.keys()] == [(3,)]  # noqa: SIM118
