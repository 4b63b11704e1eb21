"""Peers, each in an environment of its own under `benchmarks/.peers`, made when it is first asked for.

Nothing of them goes into instep's environment. Their half of a contestant is a script under `contestants/` that imports
nothing of ours; it runs with their interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import processes

PLACE = Path(__file__).resolve().parent / ".peers"
SCRIPTS = Path(__file__).resolve().parent / "contestants"


@dataclass(frozen=True, slots=True)
class Environment:
    """`requirements` fix the peer's own version; `needs_bytes` is asked of the disk before anything is fetched."""

    name: str
    requirements: tuple[str, ...]
    needs_bytes: int = 500_000_000
    variables: Mapping[str, str] = field(default_factory=dict)  # of every process of it: no telemetry

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"

    def installed(self) -> bool:
        return (PLACE / self.name / "complete").exists()

    def program(self, name: str) -> str:
        return str(PLACE / self.name / "bin" / name)

    def script(self, name: str, *arguments: str) -> list[str]:
        """`contestants/NAME.py`. `-P`: the scripts' directory must not hide the peer's own modules."""
        return [self.program("python"), "-P", str(SCRIPTS / f"{name}.py"), *arguments]

    async def install(self) -> None:
        """Raises Failed where there is no room or no registry."""
        if self.installed():
            return
        place = PLACE / self.name
        PLACE.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(PLACE).free
        if free < self.needs_bytes:
            raise processes.Failed(
                f"{self.name} takes {self.needs_bytes / 1e9:.1f} GB, {PLACE} has {free / 1e9:.1f} free"
            )
        shutil.rmtree(place, ignore_errors=True)
        await self.whole([sys.executable, "-m", "venv", str(place)])
        pip = [self.program("python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        await self.whole([*pip, *self.requirements])
        (place / "complete").touch()

    async def whole(self, command: list[str]) -> str:
        """Run to the end with the whole environment of this process: a registry may be set there."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | self.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        if process.returncode:
            raise processes.Failed(
                f"{' '.join(command[:4])} ended with {process.returncode}: {out.decode()[-2000:]}"
            )
        return out.decode()


async def versions(*peers: Environment) -> dict[str, str]:
    """Of everything that each peer runs with, for the JSON."""
    said: dict[str, str] = {}
    for peer in peers:
        listed = await peer.whole(
            [peer.program("python"), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"]
        )
        packages = json.loads(listed[listed.index("[") :])
        said[f"packages of {peer.name}"] = ", ".join(f"{one['name']} {one['version']}" for one in packages)
    return said


PROCRASTINATE = Environment("procrastinate", ("procrastinate==3.10.0", "psycopg[binary,pool]", "uvloop"))
PGQUEUER = Environment("pgqueuer", ("pgqueuer==1.6.0", "asyncpg", "uvloop"))
COCOINDEX = Environment(
    "cocoindex",
    ("cocoindex[postgres]==1.0.26", "aiohttp", "numpy", "orjson", "pysimdjson"),
    variables={"COCOINDEX_DISABLE_USAGE_TRACKING": "1"},
)
PGAI = Environment(
    "pgai",
    ("pgai[vectorizer-worker]==0.12.1",),
    needs_bytes=9 * 10**9,
    variables={"DD_TRACE_ENABLED": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"},
)
