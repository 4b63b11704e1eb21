"""Where the server that all tests share keeps its files: its log is looked at."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SERVER_DIRECTORY = Path(tempfile.gettempdir()) / f"instep-tests-{os.getuid()}" / "data"
