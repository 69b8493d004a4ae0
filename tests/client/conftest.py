"""Apps over the real engine, in memory and on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue import JobQueue
from tests.cli import processes


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> JobQueue:
    return JobQueue(url)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a jq-server without workers, shared by a file's tests."""
    folder = tmp_path_factory.mktemp("server")
    with processes.server(folder, "--worker-concurrency", "0") as running:
        yield f"grpc://{running.line('ready')['grpc']}"
        assert running.stop() == 0
