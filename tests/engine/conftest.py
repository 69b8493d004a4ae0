"""Engines that are stopped at the end of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest_asyncio

from jobqueue.core.store import Rules
from tests.engine.rig import Rig

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
