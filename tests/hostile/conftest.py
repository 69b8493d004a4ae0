"""A real server, with keys, that is attacked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests.cli import processes
from tests.hostile.target import API_KEYS, Target
from tests.hostile.turns import Turns


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A jq-server where callers have to be known, shared by a file's tests."""
    with processes.server(
        tmp_path_factory.mktemp("target"),
        "--db-url",
        "memory://",
        "--worker-concurrency",
        "0",
        JQ_AUTH_API_KEYS=API_KEYS,
    ) as service:
        yield Target(service)


@pytest.fixture(scope="module")
def open_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same with the default settings: everybody may call."""
    folder = tmp_path_factory.mktemp("open-target")
    with processes.server(folder, "--db-url", "memory://", "--worker-concurrency", "0") as service:
        yield Target(service)


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server that reads each job anew from its store: a memory store has every payload once."""
    folder = tmp_path_factory.mktemp("durable")
    with processes.server(
        folder,
        *("--db-url", f"sqlite:///{folder}/jobs.db", "--worker-concurrency", "0"),
        JQ_AUTH_API_KEYS=API_KEYS,
    ) as service:
        yield Target(service)


@pytest_asyncio.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Turns]:
    turns = Turns(monkeypatch)
    running = asyncio.create_task(turns.run())
    yield turns
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(MemoryStore())
    await engine.start()
    yield engine
    await engine.stop()
