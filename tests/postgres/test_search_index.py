"""Both lexical engines pass one suite, with filters judged by PostgreSQL itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from search_scene import SearchScene

from instep.search.ports import Document
from instep.testing import index_suite


@dataclass
class SceneHarness:
    scene: SearchScene

    @property
    def index(self):
        return self.scene.index

    @property
    def columns(self):
        return self.scene.columns

    async def put(self, rows: Sequence[dict[str, Any]]) -> list[Document]:
        await self.remove([row["id"] for row in rows])
        for row in rows:
            names = ", ".join('"' + name + '"' for name in row)
            await self.scene.conn.execute(
                f"insert into articles ({names}) values ({', '.join(['%s'] * len(row))})", list(row.values())
            )
        derivation, target = self.scene.lexical, self.scene.targets["articles.search"]
        keys = [(row["id"],) for row in rows]
        loaded = await derivation.load(self.scene.conn, target, keys, {})
        assert not loaded.deferred
        return [output.value for output in await derivation.compute(target, loaded.items)]

    async def remove(self, ids: Sequence[int]) -> None:
        await self.scene.conn.execute("delete from articles where id = any(%s)", (list(ids),))

    async def ids(self, condition: str) -> set[int]:
        return await self.scene.ids(f"title like 'common%' and ({condition})")


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
@pytest.mark.parametrize("case", index_suite.CASES, ids=lambda case: case.__name__)
async def test_index_suite(dsn, conn, tmp_path, engine, case):
    await case(SceneHarness(await SearchScene.make(dsn, conn, tmp_path, engine)))
