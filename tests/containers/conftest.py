"""A private container engine with our images in it: see engine_images.py, project.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ports
from tests.containers import engine_images
from tests.containers.project import Project
from tests.services import guardian
from tests.services.catalog import ENGINE
from tests.services.places import end_all
from tests.services.plugin import run_of

# The first test waits for the images: minutes on a quiet machine, where nothing is in the cache.
SECONDS = 1_800

NewProject = Callable[..., Project]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("containers")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an engine: the one that was named, or a private one that ends with the run."""
    run = run_of(request.config)
    run.need(ENGINE.name)
    run.need("kafka")
    if named := os.environ.get(ENGINE.variable):
        yield named
        return
    # Not where other servers of a run are: that may be in memory, and images are large.
    folder = Path(tempfile.gettempdir(), f"jobqueue-engine-{run.place.token}")
    folder.mkdir()
    guardian.watch(run.place.owner, folder)
    try:
        server = ENGINE.server(folder / ENGINE.name)
        server.start()
        yield server.host
    finally:
        end_all(folder)


@pytest.fixture(scope="session")
def images(engine: str) -> str:
    """Build all that the compose files need; what `make images` says of ours."""
    engine_images.fill(engine)
    return engine_images.build_ours(engine)


@pytest.fixture(scope="session")
def project(engine: str, images: str, request: pytest.FixtureRequest) -> NewProject:
    """`project("docker-compose.yml", JQ_HTTP_PORT=...)`: the variables it takes are free ports."""

    def make(file: str, *variables: str) -> Project:
        token = run_of(request.config).place.token
        told = {name: str(ports.take()) for name in variables}
        return Project(engine, f"jq{token}{Path(file).stem.replace('-', '')}", file, **told)

    return make
