"""Another worker, as a process of its own that stays: runs one command line after the other, as `instep` would.

Only the start of the interpreter is saved. One JSON object a line: {"environment": …, "arguments": […]} in,
{"code": …, "out": …, "err": …} out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from instep.cli.main import execute


def main() -> None:
    own = dict(os.environ)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(own | asked["environment"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = execute(asked["arguments"])
        print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}), flush=True)


if __name__ == "__main__":
    main()
