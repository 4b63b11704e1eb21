"""Log lines go to stderr, below the terminal's moving lines where there are any."""

from __future__ import annotations

import logging
from typing import TextIO, cast

import structlog

from instep.console.terminal import Terminal


class _Stderr:
    """A file that writes by way of the terminal, which knows where its bars stand."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        if text.strip():
            from rich.text import Text

            self._terminal.note(Text.from_ansi(text.rstrip("\n")))
        return len(text)

    def flush(self) -> None:
        pass


def configure(level: str, terminal: Terminal) -> None:
    """Events with fields: coloured on a terminal, JSON elsewhere. `level`: debug, info, warning or error."""
    renderer: structlog.typing.Processor
    if terminal.err.is_terminal:
        renderer = structlog.dev.ConsoleRenderer(colors=not terminal.err.no_color)
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr(terminal))),
        cache_logger_on_first_use=False,
    )
