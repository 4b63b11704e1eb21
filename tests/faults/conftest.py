"""One stage for each process of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_scene import ModelThread
from fault_scene import DIMENSIONS, Nursery, Peer, Scene, Stage


@pytest.fixture(scope="session")
def stage(server_dsn: str, template: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """In the long form each worker is an interpreter of its own."""
    whole = "torture" in request.config.option.markexpr.replace("not torture", "")
    with ModelThread(DIMENSIONS) as model:
        one = Stage(server_dsn, template, model, Peer(), Nursery(whole))
        yield one
        one.end()


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    """Twenty articles in step, for this test alone."""
    with stage.scene() as one:
        yield one
