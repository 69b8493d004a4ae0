"""Engines that are stopped at the end of the test."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.store import Rules, Store
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.engine.pair import OpenPair, Replica
from tests.engine.rig import Rig, until
from tests.services import kept
from tests.virtual_time import VirtualTimeLoop

OpenRig = Callable[..., Awaitable[Rig]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Function) -> Mapping[str, LoopFactory]:
    """Tests run in virtual time, except those whose stores are shared through files and servers."""
    if "any_store" in item.fixturenames:
        return {"kept": kept.KEEPER.loop}
    if "shared_store" in item.fixturenames:
        return {"real time": asyncio.new_event_loop}
    return {"virtual time": functools.partial(VirtualTimeLoop, step=1e-6)}


@pytest_asyncio.fixture
async def open_rig() -> AsyncIterator[OpenRig]:
    rigs: list[Rig] = []

    async def open_one(rules: Rules | None = None, **settings: Any) -> Rig:
        rig = Rig(rules, **settings)
        rigs.append(rig)
        await rig.engine.start()
        return rig

    yield open_one
    for rig in rigs:
        rig.store.fail.clear()
        await rig.engine.stop()


@pytest_asyncio.fixture
async def rig(open_rig: OpenRig) -> Rig:
    return await open_rig()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def shared_store(request: pytest.FixtureRequest) -> Callable[[Rules], Store]:
    """Makes stores that hold the same jobs."""
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        return lambda rules: PostgresStore(dsn, rules=rules, patience=patience.stretched(5.0))
    path = request.getfixturevalue("tmp_path") / "jobs.db"
    return lambda rules: SqliteStore(path, rules=rules)


@pytest_asyncio.fixture
async def open_pair(shared_store: Callable[[Rules], Store]) -> AsyncIterator[OpenPair]:
    """Two servers on one store, the first of which leads."""
    replicas: list[Replica] = []

    async def open_both(rules: Rules | None = None, **settings: Any) -> tuple[Replica, Replica]:
        settings.setdefault("interval", 0.05)
        for _ in range(2):
            one = Replica(shared_store(rules or Rules()), EngineSettings(**settings))
            replicas.append(one)
            await one.engine.start()
            await until(lambda: replicas[0].leads)
        return replicas[0], replicas[1]

    yield open_both
    for one in replicas:
        await one.engine.stop()
