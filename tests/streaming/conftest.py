"""The streaming topology on a real Redis and a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.services.topics import Topics
from tests.streaming.system import System


@pytest_asyncio.fixture
async def system(redis_url: str, kafka: Topics) -> AsyncIterator[System]:
    """Its parts in this process, as the programs wire them. Nothing runs yet."""
    made = System(redis_url, kafka)
    yield made
    await made.stop()
