"""The task queue over a real engine, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.core.clock import SystemClock
from jobqueue.core.store import Rules
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.taskqueue.components.model import Envelope, JobRecord, Status
from jobqueue.taskqueue.components.protocols import TaskQueue
from jobqueue.taskqueue.engine_job import QUEUE, task
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.api.public.hand import Hand
from tests.services import kept
from tests.stores.every import NAMES, STORES, Places

PATIENCE = 30.0


def pytest_asyncio_loop_factories(item: pytest.Item) -> kept.LoopFactories:
    return kept.loop_factories(item)


@pytest.fixture(params=NAMES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def places(request: pytest.FixtureRequest, store_name: str, tmp_path: Path) -> Iterator[Places]:
    made = Places(request, store_name, tmp_path)
    yield made
    made.close()


@pytest_asyncio.fixture
async def engine(store_name: str, places: Places) -> AsyncIterator[Engine]:
    store = STORES[store_name](places.new, Rules(), SystemClock())
    engine = Engine(store, EngineSettings(interval=0.05))
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def tasks(engine: Engine) -> EngineTaskQueue:
    return EngineTaskQueue(engine)


@pytest_asyncio.fixture
async def hand(engine: Engine) -> AsyncIterator[Hand]:
    """A worker that does as the test says."""
    hand = await Hand.connect(engine, queues=(QUEUE,))
    yield hand
    await hand.link.close()


def with_task() -> Registry:
    """The tasks of a worker that executes the task queue's jobs."""
    registry = Registry()
    registry.provide(task())
    return registry


@pytest_asyncio.fixture
async def pool(engine: Engine) -> AsyncIterator[WorkerRuntime]:
    """A worker with the built-in tasks."""
    pool = WorkerRuntime(engine, with_task(), WorkerSettings(id="pool", queues=(QUEUE,)))
    await pool.start()
    yield pool
    await pool.stop(5.0)


async def until_status(tasks: TaskQueue, job_id: str, wanted: Status) -> JobRecord:
    """Wait for a status."""
    async with patience.timeout(PATIENCE):
        while (record := await tasks.status(job_id)).summary.status is not wanted:
            await asyncio.sleep(0.01)
    return record


async def until_result(tasks: TaskQueue, job_id: str) -> Envelope:
    """Wait for the end."""
    async with patience.timeout(PATIENCE):
        while (envelope := await tasks.result(job_id)) is None:
            await asyncio.sleep(0.01)
    return envelope
