"""One suite, every store. A new store joins by one line in ``STORES``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.queue import Queue
from jobqueue.core.store import Rules
from jobqueue.stores.sqlite.store import SqliteStore
from tests.services import kept
from tests.stores.children import Child
from tests.stores.driver import Driver
from tests.stores.every import NAMES, STORES, Places

OpenDriver = Callable[..., Awaitable[Driver]]
Opened = Callable[..., Awaitable[SqliteStore]]
ROOT = Path(__file__).resolve().parents[2]


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
async def open_driver(store_name: str, places: Places) -> AsyncIterator[OpenDriver]:
    """Open a store under its own rules, with the queue ``q``. What it did is judged at the end."""
    drivers: list[Driver] = []

    async def open_one(rules: Rules | None = None, **queue: object) -> Driver:
        clock = ManualClock()
        rules = rules or Rules()
        store = STORES[store_name](places.new, rules, clock)
        driver = Driver(store, clock, rules)
        drivers.append(driver)
        await store.open()
        await driver.queue("q", **queue)
        return driver

    yield open_one
    try:
        for driver in drivers:
            await driver.check()
    finally:
        for driver in drivers:
            await driver.store.close()


@pytest_asyncio.fixture
async def driver(open_driver: OpenDriver) -> Driver:
    return await open_driver()


# -- for the tests of the SQLite store alone ------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest_asyncio.fixture
async def child(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Child]]]:
    children: list[Child] = []

    async def start(command: str, path: Path, *extra: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.stores.child", command, str(path), *extra),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        children.append(Child(process))
        return children[-1]

    yield start
    for one in children:
        if one.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                one.process.kill()
        await one.process.communicate()


@pytest_asyncio.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Stores on ``jobs.db`` with the machine's clock."""
    stores: list[SqliteStore] = []

    async def open_one(
        path: Path = tmp_path / "jobs.db", rules: Rules | None = None
    ) -> SqliteStore:
        store = SqliteStore(path, rules=rules or Rules())
        stores.append(store)
        await store.open()
        await store.queues.create(Queue(name="q"))
        return store

    yield open_one
    for store in stores:
        await store.close()
