"""Real processes under measurement: CPU, the high-water mark of memory of a whole process tree, and what they print.

Memory is the largest sum of resident sizes over a process and its descendants, sampled every 20 ms, and at least the
process's own high-water mark as Linux keeps it (VmHWM, which the exec of the process starts anew; ru_maxrss would
begin with this process's own size). Pages that processes share are counted for each: a figure is never too low.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

SAMPLE_SECONDS = 0.02
TREE_SECONDS = 0.25
MEGABYTE = 1_000_000
ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A process under measurement ended badly; carries the end of what it said."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ran to its end. Seconds are of the whole process, interpreter's start included."""

    code: int
    out: str
    err: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int

    def json(self) -> dict[str, Any]:
        """The last line of stdout as an object."""
        try:
            found = orjson.loads(self.out.strip().splitlines()[-1])
        except (IndexError, orjson.JSONDecodeError) as error:
            raise Failed(f"no JSON on stdout: {self.out[-500:]!r} {self.err[-2000:]}") from error
        if not isinstance(found, dict):
            raise Failed(f"no object on stdout: {self.out[-500:]!r}")
        return found


class MemorySampler:
    """The high-water mark of a process tree, sampled until `stop`."""

    def __init__(self, pid: int) -> None:
        self._pid, self._tree = pid, _Tree(pid)
        self.peak_bytes = 0
        self.processes = 0  # in the tree, at most
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> int:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return self.peak_bytes

    async def _sample(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_SECONDS)

    def look(self) -> None:
        total = count = 0
        for process in self._tree:
            count += 1
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_info().rss
        self.processes = max(self.processes, count)
        self.peak_bytes = max(self.peak_bytes, total, _high_water(self._pid))


class _Tree:
    """A process and all below it. To find those, every process of the machine is read: four times a second, for fifty
    times took a tenth of a core beside what is measured."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._found: list[psutil.Process] = []
        self._looked = 0.0

    def __iter__(self) -> Iterator[psutil.Process]:
        if time.monotonic() - self._looked > TREE_SECONDS:
            self._looked = time.monotonic()
            try:
                root = psutil.Process(self._pid)
                self._found = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                self._found = []
        return iter(self._found)


def _high_water(pid: int) -> int:
    """VmHWM in bytes; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without the settings of instep that its user has set, plus `more`."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("INSTEP_", "EMBED_", "PG"))
    }
    for name in ("DATABASE_URL", "DIRECT_DATABASE_URL", "QUERY_EMBED_URL"):
        kept.pop(name, None)
    return kept | {"PYTHONUNBUFFERED": "1"} | dict(more or {})


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


async def run(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    timeout: float = 600,
    until: Callable[[], bool] | None = None,
) -> Ended:
    """Run `command` to its end (or until `until` says so, asked every 20 ms: then SIGTERM). Raises Failed for
    another exit code than 0, unless it was ended."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment(env), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    sampler = MemorySampler(process.pid)
    cpu = _Cpu(process.pid)
    reading = asyncio.create_task(process.communicate())
    ended_by_us = False
    try:
        while not reading.done():
            cpu.look()
            if time.monotonic() - began > timeout:
                raise Failed(f"{command[:4]} took longer than {timeout:g} s")
            if until is not None and not ended_by_us and until():
                ended_by_us = True
                process.terminate()
            await asyncio.wait({reading}, timeout=SAMPLE_SECONDS)
        out, err = await reading
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        peak = await sampler.stop()
    ended = Ended(
        process.returncode or 0,
        out.decode(),
        err.decode(errors="replace"),
        time.monotonic() - began,
        cpu.seconds,
        peak,
    )
    if process.returncode and not ended_by_us:
        raise Failed(
            f"{' '.join(command[:4])} ended with {process.returncode}: {(ended.out + ended.err)[-3000:]}"
        )
    return ended


class _Cpu:
    """User and system time of a tree, by the last look before each of its processes ended."""

    def __init__(self, pid: int) -> None:
        self._tree = _Tree(pid)
        self._seen: dict[int, float] = {}

    def look(self) -> None:
        for process in self._tree:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                self._seen[process.pid] = times.user + times.system

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())


class Background:
    """A process that works beside the measuring until it is ended: a worker that follows."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading = asyncio.create_task(process.communicate())
        self.pid = process.pid

    def cpu_seconds(self) -> float:
        """Of its tree so far. Raises Failed where it has ended by itself."""
        if self._reading.done():
            raise Failed(f"a process that was to stay has ended: {self._said()[-2000:]}")
        cpu = _Cpu(self.pid)
        cpu.look()
        return cpu.seconds

    async def end(self) -> str:
        """SIGTERM; what it printed."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(self._reading), 20)
        except TimeoutError:
            self.kill()
            raise Failed(f"process {self.pid} did not end in 20 s after SIGTERM") from None
        return self._said()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _said(self) -> str:
        out, err = self._reading.result()
        return str(out.decode()) + str(err.decode(errors="replace"))


@asynccontextmanager
async def background(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> AsyncIterator[Background]:
    """Started, and gone at the end, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment(env), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    started = Background(process)
    try:
        yield started
    finally:
        started.kill()
