"""A disk that fills in the middle of a run: an outage, nothing counted, nothing half written; then it goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding_world import EmbeddingWorld

from instep.testing.model_server import ModelServer

SIZE = "12m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tablespace's directory on a tmpfs of a few megabytes, owned by the server's user."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can only be mounted as root")
    disk = Path("/tmp") / f"instep-disk-{os.getpid()}"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
    disk.rmdir()


async def test_a_full_disk_is_an_outage(dsn, conn, small_disk):
    data = (await (await conn.execute("show data_directory")).fetchone())[0]
    owner = os.stat(data)
    space = small_disk / "space"
    space.mkdir()
    os.chown(small_disk, owner.st_uid, owner.st_gid)
    os.chown(space, owner.st_uid, owner.st_gid)
    name = f"small_{os.getpid()}"
    await conn.execute(f"create tablespace {name} location '{space}'")
    try:
        async with ModelServer("tei", dimensions=256) as server:
            world = await EmbeddingWorld.make(dsn, conn, server)
            await world.insert(12_000)
            sink = world.derivation.sink
            await sink.prepare(conn, world.target)
            await conn.execute(f"alter table {world.tables.chunk.as_string(None)} set tablespace {name}")
            report = await world.run()
            assert (report.exit_code, report.counters.failed, report.counters.dead) == (1, 0, 0)
            assert "space" in report.outage
            assert 0 < report.counters.indexed < 12_000
            assert {attempts for attempts, *_ in (await world.entries()).values()} == {0}
            assert await world.stamped() == set(await world.chunks())
            await conn.execute(f"alter table {world.tables.chunk.as_string(None)} set tablespace pg_default")
            report = await world.run()
            assert (report.exit_code, len(await world.stamped())) == (0, 12_000)
            await world.embedder.close()
    finally:
        await conn.execute("drop table if exists " + world.tables.chunk.as_string(None))
        await conn.execute(f"drop tablespace {name}")
