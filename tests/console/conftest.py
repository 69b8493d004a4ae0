"""Servers with the console, on each store with which its tests run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.hostile.known_callers import serving


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest_asyncio.fixture
async def stored(store_url: str) -> AsyncIterator[ServerProcess]:
    """A server without credentials, on SQLite and on PostgreSQL."""
    async with serving(store_url, known=False) as server:
        yield server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerProcess]:
    """A server without credentials, in memory."""
    async with serving(known=False) as server:
        yield server


@pytest_asyncio.fixture
async def person(server: ServerProcess) -> AsyncIterator[Person]:
    async with at(server) as found:
        yield found


@pytest_asyncio.fixture
async def keyed() -> AsyncIterator[ServerProcess]:
    """A server that identifies callers by API keys."""
    async with serving() as server:
        yield server
