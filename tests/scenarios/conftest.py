"""The same scenarios, with the same expectations, wherever an app may run.

    async def test_it(place: Place) -> None:
        app = await place.app()

        @app.task
        async def add(a: int, b: int) -> int: ...

        async with place.worker(app):
            assert await place.result(await add.submit(1, 2)) == 3

A place that cannot keep a scenario is named in ``exceptions.py`` with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.scenarios import exceptions
from tests.scenarios.place import PLACES, Place

NEED_SERVERS = {"postgres", "redis"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.integration] if name in NEED_SERVERS else [])
    for name in PLACES
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    exceptions.apply(items)


@pytest_asyncio.fixture(params=NAMES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    made = PLACES[request.param](request.getfixturevalue)
    yield made
    await made.close()
