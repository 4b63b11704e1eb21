"""A run that works can be told from one that hangs or never comes, by one file."""

from prometheus_client.parser import text_string_to_metric_families
from world import World

from instep.upkeep import textfile


async def test_the_file_says_when_and_what(dsn, conn, tmp_path):
    world = await World.make(dsn, conn, rows=3)
    report = await world.run()
    path = textfile.write(tmp_path, await textfile.read(conn, report.name))
    found = {f.name: f.samples[0] for f in text_string_to_metric_families(path.read_text())}
    assert found["instep_run_indexed"].value == 3
    assert found["instep_run_indexed"].labels == {"derivation": "articles.embed"}
    assert found["instep_run_last_success_timestamp_seconds"].value > 1.7e9
    assert [p.name for p in tmp_path.iterdir()] == ["instep_articles_embed.prom"]


async def test_a_run_that_never_ended_has_no_new_finish(dsn, conn, tmp_path):
    world = await World.make(dsn, conn, rows=3)
    await conn.execute("insert into instep.run (derivation) values ('articles.embed')")
    assert set((await textfile.read(conn, world.declaration.name)).stamps) == {"start", "seen"}
