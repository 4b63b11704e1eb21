"""The search derivation under the engine itself: a run fills the index, and the next one makes a lost index again."""

from __future__ import annotations

import shutil

import psycopg
import pytest
from search_scene import SearchScene

from instep.clock import SYSTEM
from instep.engine.run import Options, run
from instep.engine.stopping import Stop
from instep.engine.wave import Limits
from instep.testing.toy import Recorder


class Connections:
    def __init__(self, dsn):
        self.dsn = dsn

    async def dedicated(self):
        return await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)


async def drained(scene):
    reports = await run(
        Connections(scene.dsn), scene.source, [scene.embed, scene.lexical], clock=SYSTEM, observer=Recorder(),
        options=Options(Limits()), stop=Stop(),
    )  # fmt: skip
    assert [report.exit_code for report in reports] == [0, 0], reports
    return reports


@pytest.mark.parametrize("engine", ["tantivy", "postgres"])
async def test_a_run_keeps_the_index_in_step(dsn, conn, tmp_path, engine):
    scene = await SearchScene.make(dsn, conn, tmp_path, engine)
    await conn.execute(
        "insert into articles (id, title) select n, 'common w' || n from generate_series(1, 1200) n"
    )
    reports = await drained(scene)
    assert [report.counters.indexed for report in reports] == [1200, 1200]
    assert (await scene.search("common")).total_about == 1200
    await conn.execute("update articles set title = 'changed' where id = 7")
    await conn.execute("update articles set section = 'net' where id = 8")
    await conn.execute("delete from articles where id = 9")
    await conn.execute('update articles set "open" = false where id = 10')
    await conn.execute("update articles set noise = 1")
    reports = await drained(scene)
    assert [(r.counters.indexed, r.counters.removed) for r in reports] == [(1, 2), (2, 2)]
    assert {key async for key in scene.index.keys()} == {(n,) for n in range(1, 1201) if n not in (9, 10)}  # noqa: SIM118
    assert await scene.found("w7") == await scene.found("w9") == await scene.found("w10") == []
    assert await scene.found("common", where="section = 'net'") == [8]
    if engine == "tantivy":
        shutil.rmtree(scene.index.path)
        reports = await drained(scene)
        assert [report.counters.indexed for report in reports] == [0, 1198]
        assert (await scene.search("common")).total_about == 1197
        assert [report.counters.indexed for report in await drained(scene)] == [0, 0]
