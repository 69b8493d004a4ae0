"""Engines that are stopped at the end of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from jobqueue.core.store import Rules
from jobqueue.engine.settings import EngineSettings
from tests.engine.pair import OpenPair, Replica
from tests.engine.rig import Rig, until

OpenRig = Callable[..., Awaitable[Rig]]


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


@pytest_asyncio.fixture
async def open_pair(tmp_path: Path) -> AsyncIterator[OpenPair]:
    """Two servers on one file, the first of which leads."""
    replicas: list[Replica] = []

    async def open_both(rules: Rules | None = None, **settings: Any) -> tuple[Replica, Replica]:
        settings.setdefault("interval", 0.05)
        for _ in range(2):
            one = Replica(tmp_path / "jobs.db", rules or Rules(), EngineSettings(**settings))
            replicas.append(one)
            await one.engine.start()
            await until(lambda: replicas[0].leads)
        return replicas[0], replicas[1]

    yield open_both
    for one in replicas:
        await one.engine.stop()
