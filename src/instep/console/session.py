"""What a command is given: the terminal, the settings as they were loaded, and the app, opened when asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from instep.console.terminal import Terminal

if TYPE_CHECKING:
    from instep.app import Instep
    from instep.settings import Settings


@dataclass
class Session:
    """One command's surroundings. `flags`: settings given on the command line; `given`: settings that are used as
    they are (the demo's), instead of loading any; `rest`: arguments that are for another program."""

    terminal: Terminal
    flags: Mapping[str, Any] = field(default_factory=dict)
    given: Settings | None = None
    rest: tuple[str, ...] = ()

    @cached_property
    def settings(self) -> Settings:
        """Flags, environment, file, defaults. What is odd about them is said once, on stderr."""
        if self.given is not None:
            return self.given
        from instep.settings import Settings

        settings = Settings.load(flags=self.flags)
        for warning in settings.warnings:
            self.terminal.warn(warning)
        return settings

    def sure(self, question: str) -> bool:
        """Ask; True at once with --yes or INSTEP_YES. Refused where there is no terminal to ask on."""
        return self.settings.yes or self.terminal.ask(question)

    def announce_embedded(self) -> None:
        """Say so where a command is about to start the embedded server."""
        if self.settings.database_url is not None:
            return
        from instep.database import embedded

        if embedded.attach(self.settings.data_dir) is None:
            where = embedded.status(self.settings.data_dir).directory
            self.terminal.note(f"starting the embedded PostgreSQL in {where} (to stop it: instep db stop)")

    @asynccontextmanager
    async def app(self) -> AsyncIterator[Instep]:
        """The app on the database of the settings; an embedded server is started where none runs, and it is said."""
        from instep import failpoints
        from instep.app import Instep
        from instep.console.logs import configure

        failpoints.arm(self.settings.failpoint)
        configure(self.settings.log_level, self.terminal)
        self.announce_embedded()
        async with Instep.open(self.settings) as app:
            yield app
