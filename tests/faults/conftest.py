"""One stage for each process of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_scene import ModelThread
from fault_scene import DIMENSIONS, Peer, Scene, Stage


@pytest.fixture(scope="session")
def stage(server_dsn: str, template: str) -> Iterator[Stage]:
    with ModelThread(DIMENSIONS) as model:
        one = Stage(server_dsn, template, model, Peer())
        yield one
        one.end()


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    """Twenty articles in step, for this test alone."""
    with stage.scene() as one:
        yield one
