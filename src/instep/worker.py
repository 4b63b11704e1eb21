"""The worker process: signals, and what it does when a run ends for an outage.

SIGINT finishes what is being computed or committed and releases what is only loaded; SIGTERM releases all; a second
signal of either kind stops at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from instep.engine.stopping import Stop

T = TypeVar("T")

SIGNAL_EXIT = 128  # plus the signal's number, as shells do


class Terminated(Exception):
    """SIGTERM arrived: everything in hand was released."""


async def supervise(work: Callable[[Stop], Awaitable[T]], told: Callable[[str], None]) -> T:
    """Run `work` under the signals' rules. `told` is called once for each signal, with a line for people.

    Raises Terminated after SIGTERM.
    """
    stop, loop = Stop(), asyncio.get_running_loop()
    task = asyncio.ensure_future(work(stop))
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            told("stopping at once; what is in hand is left to its lease")
            os._exit(SIGNAL_EXIT + number)
        if number == signal.SIGINT:
            told("finishing the wave in hand, again to stop at once")
            stop.finish()
        else:
            told("releasing what is in hand, again to stop at once")
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        with _rare_collections():
            return await task
    except asyncio.CancelledError:
        if signal.SIGTERM in received:
            raise Terminated from None
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


COLLECT_AFTER = 20_000  # new containers; a wave of 1,000 rows makes some 10,000, and none of them in a cycle


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python's default, a look for cycles after each 700 new containers, took a sixth of a worker's CPU."""
    usual = gc.get_threshold()
    gc.freeze()  # modules and settings are not looked at again
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
