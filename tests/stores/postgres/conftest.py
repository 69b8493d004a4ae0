"""Stores on one database, a connection beside them, and a line to it that can be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from jobqueue.core.queue import Queue
from jobqueue.stores.postgres.statements import FEW
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.stores.driver import worker
from tests.stores.postgres.proxy import Proxy

OpenStore = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture
def few() -> int:
    """The threshold below which jobs are rows of their own; with 1 everything goes by ranges."""
    return FEW


@pytest_asyncio.fixture
async def open_store(postgres_dsn: str, few: int) -> AsyncIterator[OpenStore]:
    """Open stores on the test's database, with the queue ``q`` and the worker ``w``."""
    stores: list[PostgresStore] = []

    async def open_one(dsn: str = postgres_dsn, **options: Any) -> PostgresStore:
        store = PostgresStore(dsn, **{"patience": patience.stretched(5.0), "few": few} | options)
        stores.append(store)
        await store.open()
        await store.queues.create(Queue(name="q", retry_profile="scheduler"))
        await store.workers.register(worker(concurrency=1_000))
        return store

    yield open_one
    for store in stores:
        await store.close()


@pytest_asyncio.fixture
async def store(open_store: OpenStore) -> PostgresStore:
    return await open_store()


@pytest_asyncio.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    """A connection of the test's own, beside the store."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def proxy(postgres_dsn: str) -> AsyncIterator[Proxy]:
    made = Proxy(postgres_dsn)
    await made.open()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def cuttable(proxy: Proxy, open_store: OpenStore) -> PostgresStore:
    """A store whose every connection goes through ``proxy``."""
    return await open_store(proxy.dsn)
