"""What triggers put into the change log: every way of writing a row, and that the user never notices."""

from __future__ import annotations

import pytest

from finding_scene import KEYS, SHAPES, Scene, make


async def _prepared(conn, key: str, shape: str) -> Scene:
    """Five rows, installed and in step."""
    scene = await make(conn, key, shape)
    await scene.put(1, 2, 3, 4, 5)
    await scene.install()
    await scene.settle()
    for declaration in scene.declarations:
        await scene.sweep(declaration)
        await scene.work(declaration)
    assert await scene.in_step()
    assert len(await scene.derived()) == 5
    return scene


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
async def test_derived_keys_equal_the_sources(conn, key, shape):
    """Each operation alone reaches the derived state, for each type of key and shape of table (C1-4, C1-6)."""
    scene = await _prepared(conn, key, shape)
    for operation in OPERATIONS:
        before = await scene.wanted()
        await _operate(scene, operation)
        assert await scene.wanted() != before, "the operation changed nothing: this test could not fail"
        await scene.settle()
        assert await scene.in_step(), operation
        assert set(await scene.derived()) == set(await scene.wanted())
