"""Room for the server's data, its temporary files and what instep keeps outside it."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

from instep.database.statements import Statements
from instep.upkeep.doctor.findings import Check, Finding, ok, skipped
from instep.upkeep.doctor.look import Look

WARN = (0.10, 20_000_000_000)  # less than this share and this many bytes are left
FAIL = (0.03, 2_000_000_000)

_SQL = Statements("instep.upkeep.doctor", "disk.sql")


async def disk(look: Look) -> list[Finding]:
    places = {look.settings.data_dir: "INSTEP_DATA_DIR"}
    unseen = ""
    ((shown,),) = await look.rows(_SQL["shown"])
    if not shown:
        unseen = "where the server keeps its data is not shown to this role"
    else:
        directory, system, spaces = await look.row(_SQL["places"])
        if await asyncio.to_thread(_is_here, Path(directory), system):
            places |= {Path(directory): "the server's data"}
            places |= {Path(where): f"the tablespace {name}" for name, where in spaces}
        else:
            unseen = f"the server's data directory {directory} is not on this machine, or may not be read"
    found, free_of = [], {}
    for path, what in places.items():
        usage = await asyncio.to_thread(_usage, path)
        if usage is None:
            continue
        total, free, device = usage
        said = f"{_size(free)} of {_size(total)} free"
        state = _state(free, total)
        if state != "ok" and device not in free_of:
            detail = f"{what} in {path}: {said}"
            found.append(Finding("failed" if state == "failed" else "warn", detail, "free or add space; what takes it", (), (f"du -xh --max-depth=1 {path}",)))  # fmt: skip
        free_of[device] = said
    if unseen:
        found.append(skipped(unseen, "look there: df -h"))
    return found or ok(", ".join(dict.fromkeys(free_of.values())))


def _is_here(directory: Path, system: int) -> bool:
    """The directory of that name here is that server's: a path alone may be another machine's."""
    try:
        with open(directory / "global" / "pg_control", "rb") as control:
            return int(struct.unpack("=Q", control.read(8))[0]) == system
    except (OSError, struct.error):
        return False


def _usage(path: Path) -> tuple[int, int, int] | None:
    """Bytes in all and free, and the file system; None where the path is not there (yet)."""
    try:
        usage = shutil.disk_usage(path)
        return usage.total, usage.free, path.stat().st_dev
    except FileNotFoundError:
        return None


def _state(free: int, total: int) -> str:
    for state, (share, size) in (("failed", FAIL), ("warn", WARN)):
        if free < share * total and free < size:
            return state
    return "ok"


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


CHECKS: Sequence[Check] = (
    Check(
        "disk",
        "A full disk is an outage for every writer of the database, not for instep alone.",
        disk,
        "server",
    ),
)
