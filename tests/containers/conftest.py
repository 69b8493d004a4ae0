"""A private container engine with our images in it: see engine_images.py, project.py.

All processes of a run (`-n 3 --dist loadfile`) share it: while one waits for a container, another
goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ports
from tests.containers import engine_images
from tests.containers.project import Project
from tests.services.catalog import ENGINE
from tests.services.plugin import run_of
from tests.services.run import Run

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
def engine(request: pytest.FixtureRequest) -> str:
    """The address of an engine: the one that was named, or a private one for all of the run."""
    run = run_of(request.config)
    run.need("kafka")  # its jars become an image
    return run.address(ENGINE.name)


@pytest.fixture(scope="session")
def images(engine: str, request: pytest.FixtureRequest) -> str:
    """Build all that the compose files need, once in a run; what `make images` says of ours."""
    run = run_of(request.config)
    table = _table(run)
    with run.one_at_a_time("images"):
        if not table.exists():
            engine_images.fill(engine)
            table.write_text(engine_images.build_ours(engine))
        return table.read_text()


def _table(run: Run) -> Path:
    return run.place.folder / "images.txt"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sizes: part of what is shown."""
    if (table := _table(run_of(terminalreporter.config))).exists():
        terminalreporter.section("images")
        terminalreporter.write(table.read_text())


@pytest.fixture(scope="session")
def project(engine: str, images: str, request: pytest.FixtureRequest) -> NewProject:
    """`project("docker-compose.yml", JQ_HTTP_PORT=...)`: the variables it takes are free ports."""

    def make(file: str, *variables: str) -> Project:
        token = run_of(request.config).place.token
        told = {name: str(ports.take()) for name in variables}
        return Project(engine, f"jq{token}{Path(file).stem.replace('-', '')}", file, **told)

    return make
