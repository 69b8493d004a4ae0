"""The relay over every store, with a publisher that does as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jobqueue.core.store import Store, Term
from jobqueue.events.relay import Relay
from tests.events.fake import FakePublisher
from tests.services import kept
from tests.stores import conftest as stores

# The same stores, in the same way.
store_name, places = stores.store_name, stores.places
open_driver, driver = stores.open_driver, stores.driver


def pytest_asyncio_loop_factories(item: pytest.Item) -> kept.LoopFactories:
    return kept.loop_factories(item)


class Relays:
    """Relays over one store, one after the other."""

    def __init__(self) -> None:
        self._made: list[Relay] = []

    def start(self, store: Store, term: Term, publisher: FakePublisher, **more) -> Relay:
        relay = Relay(publisher, **more)
        relay.start(store.stream, lambda: term)
        self._made.append(relay)
        return relay

    async def stop(self) -> None:
        for relay in self._made:
            await relay.stop()


@pytest_asyncio.fixture
async def relays() -> AsyncIterator[Relays]:
    made = Relays()
    yield made
    await made.stop()
