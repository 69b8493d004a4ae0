"""Apps over the real engine, in memory and on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import JobQueue


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> JobQueue:
    return JobQueue(url)
