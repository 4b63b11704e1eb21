"""Numbers, durations and sizes as people read them. Pure."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(number: int) -> str:
    """63681 → "63,681"."""
    return f"{number:,}"


def plural(number: int, singular: str, many: str = "") -> str:
    """1, "row" → "1 row"; 2, "entry", "entries" → "2 entries"."""
    return f"{count(number)} {singular if number == 1 else many or singular + 's'}"


def duration(seconds: float) -> str:
    """How long something took: "31 ms", "0.3 s", "41 s", "13 m 41 s", "2 h 5 m", "3 d 4 h"."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} m {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} m"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def age(seconds: float) -> str:
    """How old something is, in its largest unit: "now", "8 s", "13 m", "6 h", "1 d"."""
    if seconds < 1:
        return "now"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} m"
    if seconds < _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / _DAY:.0f} d"


def ago(seconds: float) -> str:
    """8 → "8 s ago"; 0 → "just now"."""
    return "just now" if seconds < 1 else f"{age(seconds)} ago"


def left(seconds: float) -> str:
    """Time left, as a clock shows it: "4:39 left", "1:02:05 left"."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // _MINUTE, 60)
    clock = f"{hours}:{minutes:02}:{whole % _MINUTE:02}" if hours else f"{minutes}:{whole % _MINUTE:02}"
    return f"{clock} left"


def size(number: int) -> str:
    """Bytes: "812 B", "118 kB", "118 MB", "1.2 GB" (powers of 1000, as disks are sold)."""
    if number < 1000:
        return f"{number} B"
    value, units = number / 1000, ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    unit = units[0]
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def percent(fraction: float) -> str:
    """0.754 → "75.4%"; 1 only for all: 0.99999 → "99.9%"."""
    if fraction >= 1:
        return "100%"
    return f"{min(fraction, 0.999) * 100:.1f}%"
