"""Stores of every kind, beside each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from tests.replay.mixed import RULES
from tests.services import kept
from tests.stores.driver import Driver
from tests.stores.every import NAMES, STORES, Places

OpenEmpty = Callable[[str], Awaitable[Driver]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> kept.LoopFactories:
    return kept.loop_factories(item, "open_empty")


@pytest.fixture(params=NAMES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class FineClock(ManualClock):
    """As fine as the clocks of many systems, and finer than a microsecond."""

    def advance(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(store_name: str) -> ManualClock:
    return ManualClock() if store_name == "redis" else FineClock()  # Redis's own has microseconds


@pytest_asyncio.fixture
async def open_empty(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[OpenEmpty]:
    """Open an empty store, all of them under one clock."""
    places: dict[str, Places] = {}
    drivers: list[Driver] = []

    async def open_one(name: str) -> Driver:
        if name not in places:
            places[name] = Places(request, name, tmp_path)
        store = STORES[name](places[name].new, RULES, clock)
        driver = Driver(store, clock, RULES)
        drivers.append(driver)
        await store.open()
        return driver

    yield open_one
    for driver in drivers:
        await driver.store.close()
    for place in places.values():
        place.close()
