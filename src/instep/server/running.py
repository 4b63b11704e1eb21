"""Runs that are started by hand over HTTP: each in a process of its own, so that no search waits for one.

What a run does stands in the database as of any other (instep.run); what is kept here is that it was started, and how
its process ended.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from instep.clock import Clock
from instep.settings import Settings
from instep.web.problems import Problem

MOST_AT_ONCE = 4
ENDING_SECONDS = 10.0  # for a run to give back what it holds, when the server ends
_KEPT_LINES = 20

_log = structlog.get_logger("instep.server")


@dataclass
class Started:
    name: str
    at: datetime
    process: asyncio.subprocess.Process
    exit_code: int | None = None
    said: str = ""  # its last words, where it did not end well

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "started_at": self.at.isoformat(),
            "state": "running" if self.exit_code is None else "ok" if self.exit_code == 0 else "failed",
            "exit_code": self.exit_code,
            "said": self.said,
        }


class Runs:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._started: dict[str, Started] = {}
        self._watching: set[asyncio.Task[None]] = set()

    async def start(self, name: str) -> Started:
        """Raises Problem where one of that name runs already, or too many do."""
        running = [one for one in self._started.values() if one.exit_code is None]
        if any(one.name == name for one in running):
            raise Problem(
                "conflict", f"a run of {name} that was started here is not at its end", "wait for it"
            )
        if len(running) >= MOST_AT_ONCE:
            raise Problem(
                "conflict", f"{len(running)} runs were started here and go on", "wait for one to end"
            )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "instep", "run", name, "--json",
            env=self._settings.environment(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        started = self._started[name] = Started(name, self._clock.now(), process)
        task = asyncio.create_task(self._watch(started))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return started

    def last(self, name: str) -> Started | None:
        return self._started.get(name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end, runs in hand are asked to give back what they hold."""
        try:
            yield
        finally:
            for one in self._started.values():
                if one.exit_code is None:
                    one.process.terminate()
            if self._watching:
                await asyncio.wait(self._watching, timeout=ENDING_SECONDS)
            for one in self._started.values():
                if one.exit_code is None:
                    one.process.kill()

    async def _watch(self, started: Started) -> None:
        assert started.process.stderr is not None
        lines: list[str] = []
        async for line in started.process.stderr:
            lines = [*lines[1 - _KEPT_LINES :], line.decode(errors="replace").rstrip()]
        code = await started.process.wait()
        started.said = "\n".join(lines) if code else ""
        started.exit_code = code
        _log.info("run ended", name=started.name, exit_code=code)
