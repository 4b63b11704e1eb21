"""The big table of capture: each way of writing a row × types of key × shapes of table, and each trigger is needed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from finding_scene import KEYS, SHAPES, Scene, prepared
from psycopg import sql

from instep.engine.capture import TRIGGERS, family


@pytest.fixture(scope="module")
def shared_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """One database for the big table of cases, which use a table each."""
    name = f"t_capture_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
        yield psycopg.conninfo.make_conninfo(server_dsn, dbname=name)
        conn.execute(f"drop database {name} with (force)")


async def _operate(scene: Scene, operation: str) -> None:
    if operation == "insert":
        await scene.put(6, 7)
    elif operation == "update":
        await scene.run("update {table} set body = body || ' changed' where {is}", *scene.key(2))
        await scene.run("update {table} set published = false where {is}", *scene.key(4))
    elif operation == "key change":
        await scene.run("update {table} set ({key}) = row({values}) where {is}", *scene.key(9), *scene.key(1))
    elif operation == "delete":
        await scene.run("delete from {table} where {is}", *scene.key(5))
    else:
        await scene.run("truncate {table}")


OPERATIONS = ("insert", "update", "key change", "delete", "truncate")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", KEYS)
async def test_derived_keys_equal_the_sources(shared_dsn, key, shape):
    """Each operation alone reaches the derived state, for each type of key and shape of table (C1-4, C1-6)."""
    async with await psycopg.AsyncConnection.connect(shared_dsn, autocommit=True) as conn:
        scene = await prepared(conn, key, shape, f"{shape}_{key}")
        for operation in OPERATIONS:
            before = await scene.wanted()
            await _operate(scene, operation)
            assert await scene.wanted() != before, "the operation changed nothing: this test could not fail"
            await scene.settle()
            assert await scene.in_step(), operation
            assert set(await scene.derived()) == set(await scene.wanted())


NEEDED = {
    "instep_insert": "insert into {table} ({key}, body) values ({values}, 'new')",
    "instep_update": "update {table} set body = 'new' where {is}",
    "instep_delete": "delete from {table} where {is}",
    "instep_truncate": "truncate {table}",
    "instep_row": "insert into {table} ({key}, body) values ({values}, 'new')",
}


@pytest.mark.parametrize("shape", ["plain", "partitioned"])
@pytest.mark.parametrize("trigger", TRIGGERS)
async def test_each_trigger_is_needed(conn, trigger, shape):
    """With any one trigger dropped its operation stays unseen; with all of them the same operation is seen."""
    scene = await prepared(conn, "bigint", shape)
    number = 8 if "insert" in NEEDED[trigger] else 2
    values = () if trigger == "instep_truncate" else scene.key(number)

    async def operate() -> None:
        if trigger == "instep_row":
            await conn.execute("set session_replication_role = replica")
        await scene.run(NEEDED[trigger], *values)
        await conn.execute("set session_replication_role = origin")

    async with conn.transaction(force_rollback=True):
        await operate()
        seen = await scene.log() or await scene.run("select * from instep.marker")
        assert seen
    for member in await family(conn, scene.source.oid):
        # TRUNCATE of the parent fires its partitions' triggers too.
        if trigger == "instep_truncate" or member.oid == scene.source.oid:
            await scene.run("drop trigger {t} on {on}", t=sql.Identifier(trigger), on=member.relation)
    await operate()
    await scene.settle()
    assert not await scene.in_step()
