"""The end of a history: everything under way ends, workers drain, and derived must be f(source)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from invariants import check, content_hash
from model_parts import (
    LOST_AFTER,
    NAME,
    OUTBOX,
    Broken,
    Operation,
    fetch,
)
from model_world import World

from instep.engine import pause
from instep.engine.pipeline import drain
from instep.engine.stopping import Stop
from instep.engine.sweep import Sweeper
from instep.testing.model_server import vector_of


def replay(world: World, trace: Sequence[Operation]) -> None:
    """A whole history, its end included. Raises Broken."""
    world.begin_history()
    try:
        for operation, *values in trace:
            world.do(operation, *values)
        settle(world)
    except BaseException:
        world.abandon_history()
        raise


def settle(world: World) -> None:
    """Everything that is under way ends, time passes, workers drain: derived = f(source), or Broken."""
    world.run(_settle(world))


async def _settle(world: World) -> None:
    await world.slow_commit()
    for _ in range(len(world.actors) + 1):
        for actor in world.stoppable:
            if actor.task is not None:
                actor.gate.open()
        await asyncio.sleep(0)
        await world.reap()
    if any(actor.task for actor in world.actors):
        raise Broken("hangs", "something waits for ever, with no gate closed")
    await pause.resume(world.user)
    await world.read_targets(world.eye)
    for worker in world.workers:  # they are gone; their leases run out
        worker.hands = {}
        worker.rest()
    await world.pass_time("lease_until")
    await _drain(world)
    await _check(world, "by the queue alone", swept=False)
    await world.sweep(10_000)
    await _drain(world)
    await _check(world, "after a sweep", swept=True)
    calls = sum(worker.derivation.model.calls for worker in world.workers)
    again = await Sweeper(world.declaration, list(world.targets.values())).sweep(world.sweeper.conns[0])
    await _drain(world)
    if again.enqueued or calls != sum(worker.derivation.model.calls for worker in world.workers):
        raise Broken("work where all is in step", f"{again.enqueued} entries")


async def _drain(world: World) -> None:
    worker = world.workers[-1]
    while (await world.absorbing.drain(world.absorber.conns[0])).taken:
        pass
    in_use = [name for name, target in world.targets.items() if target.state != "retired"]
    for _ in range(12):
        claimed = 0
        for target in in_use:
            await world.pass_time("not_before")
            hands = world.hands(worker, target)
            await hands.outbox.let_in(worker.conns[0])
            claimed += await drain(hands, Stop())
        if not claimed:
            return
    raise Broken("never drained")


async def _check(world: World, when: str, *, swept: bool) -> None:
    """Before a sweep, what only a sweep can know (`unseen`, and markers) is not held against anybody."""
    unseen = () if swept else world.unseen
    rows = await fetch(world.eye, "select id, title, published from articles")
    entries = await fetch(
        world.eye,
        f"select key_1, target, failed_hash, error_kind from {OUTBOX} where failed_at is not null",
    )
    hashes = {key: content_hash([title]) for key, title, published in rows if published}
    failed = {(key,) for key, title, _ in rows if title is not None and "poison" in title}
    failed |= {(key,) for key in world.failed}
    for key, target, failed_hash, kind in entries:
        if kind == "lost" and world.claimed[key, target] >= LOST_AFTER:
            failed.add((key,))
        elif (key, target) in unseen:
            continue
        elif failed_hash is not None and key in hashes and failed_hash != hashes[key]:
            raise Broken("dead letter of other content", f"{(key, target)} {when}")
    found = await check(world.eye, NAME, failed=failed, vector=vector_of)
    if not swept:
        found = [v for v in found if v.key and (v.key[0], v.target) not in unseen]
    if found:
        raise Broken(found[0].name, f"{when}: " + "; ".join(map(str, found)))
