"""What the core's routes and pages need beside the app: the keeper of figures, the runs started here, the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from instep.inference.providers import default_url
from instep.server.keeping import Keeper
from instep.server.running import Runs
from instep.settings import Settings


@dataclass(frozen=True, slots=True)
class Opened:
    settings: Settings
    keeper: Keeper
    runs: Runs

    @property
    def semantic(self) -> bool:
        """Whether there is a model to ask. An address left empty means, for a server, that there is none: where the
        provider's own default leads is the workers' matter."""
        settings = self.settings
        return bool(
            settings.query_embed_url or settings.embed_url or not default_url(settings.embed_provider)
        )


def opened(request: Request) -> Opened:
    state: Opened = request.app.state.opened
    return state


House = Annotated[Opened, Depends(opened)]
