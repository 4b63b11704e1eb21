"""A worker looks for cycles rarely, and only a worker: whoever embeds instep keeps his own collector."""

from __future__ import annotations

import gc

from instep.engine.stopping import Stop
from instep.worker import COLLECT_AFTER, supervise


async def test_the_collector_is_rare_within_a_run_and_as_it_was_afterwards() -> None:
    async def work(_: Stop) -> tuple[int, int, int]:
        return gc.get_threshold()

    usual = gc.get_threshold()
    assert (await supervise(work, print))[0] == COLLECT_AFTER
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0
