"""Starts workers as processes of their own, from an interpreter that has everything loaded: a tenth of a second each.

Each is forked twice, so that it becomes a child of the tests (which are a subreaper): they send it signals and read its
wait status as for any other process. One JSON object a line in, the new process's pid out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, NoReturn

import instep.app
import instep.catalogues.tables.commands
import instep.catalogues.tables.workshop
import instep.console.logs
import instep.worker  # noqa: F401 - loaded before the fork
from instep.cli.main import execute


def become(asked: dict[str, Any]) -> NoReturn:
    code = 70
    try:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        code = execute(asked["arguments"])
    except BaseException:  # noqa: BLE001 - said, and the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    reading, writing = os.pipe()
    for line in sys.stdin:
        between = os.fork()
        if between == 0:
            started = os.fork()
            if started == 0:
                become(json.loads(line))
            os.write(writing, f"{started:<10}".encode())
            os._exit(0)
        os.waitpid(between, 0)  # from here on it is an orphan, and the subreaper's child
        print(int(os.read(reading, 10)), flush=True)


if __name__ == "__main__":
    main()
