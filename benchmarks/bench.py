"""What every part is given: how thorough to be, and where to say what is going on."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Bench:
    """`scale` 1 is what the goals are for; tests run parts on a small fraction of it, `quick` with few settings."""

    rounds: int = 3
    with_pgai: bool = False
    with_peers: bool = True  # those that install in a minute
    scale: float = 1.0
    quick: bool = False
    began: float = field(default_factory=time.monotonic)

    def sized(self, rows: int, least: int = 100) -> int:
        return max(least, int(rows * self.scale))

    def say(self, text: str) -> None:
        """Progress, to stderr: stdout is the report's."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)
