"""What one process tells the others on the same store. Memory has no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Assignment, Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim, Rules, Store
from tests import patience
from tests.stores.driver import accept, new, spec, worker
from tests.stores.every import NAMES, STORES, Places

SHARED = [name for name in NAMES if name.values != ("memory",)]
PATIENCE = 20.0


@pytest.fixture(params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Pair:
    """Two stores on one place. The second one hears what the first one does."""

    def __init__(self, one: Store, two: Store, clock: ManualClock) -> None:
        self.one, self.two, self.clock = one, two, clock
        self.heard = Change(0)

    def _hear(self, change: Change) -> None:
        self.heard |= change

    async def listen(self) -> None:
        """Until it is certain that it hears, and has heard all that was done before."""
        self.two.on_change(self._hear)
        async with patience.timeout(PATIENCE):
            while Change.CONTROL not in self.heard:
                await self.one.register_worker(worker())
                await asyncio.sleep(0.01)
        await self.everything()

    async def everything(self) -> Change:
        """All that it heard of what was done so far."""
        heard, self.heard = self.heard, Change(0)
        await accept(self.one)
        await self.hears(Change.WORK)
        heard, self.heard = heard | self.heard, Change(0)
        return heard

    async def hears(self, change: Change) -> None:
        async with patience.timeout(PATIENCE):
            while change not in self.heard:
                await asyncio.sleep(0.005)

    async def assigned(self) -> Assignment:
        """A job that a worker of the second process holds: that one claimed it."""
        await self.one.submit(new(spec(timeout=5.0, max_retries=0, priority=9)))
        (got,) = await self.two.claim([Claim(("q",), ["w"])])
        return got

    async def running(self) -> Assignment:
        got = await self.assigned()
        (started,) = (await self.two.apply([Transition.started(got.seq, got.lease)])).outcomes
        assert started.applied
        return got

    async def sweep(self) -> None:
        """The first process makes the moves that are due."""
        due = await self.one.due(10)
        assert due.transitions
        outcomes = (await self.one.apply(due.transitions)).outcomes
        assert all(outcome.applied for outcome in outcomes)


@pytest_asyncio.fixture
async def pair(store_name: str, places: Places) -> AsyncIterator[Pair]:
    place, clock = places.new(), ManualClock()
    rules = Rules(assignment_timeout=30.0)
    stores = [STORES[store_name](lambda: place, rules, clock) for _ in range(2)]
    for store in stores:
        await store.open()
    await stores[0].create_queue(Queue(name="q"))
    pair = Pair(stores[0], stores[1], clock)
    await pair.listen()
    yield pair
    for store in stores:
        await store.close()


async def test_an_attempt_that_ran_too_long_is_told_to_its_workers_process(pair: Pair):
    await pair.running()
    await pair.everything()
    pair.clock.advance(60.0)
    await pair.sweep()
    await pair.hears(Change.CONTROL)


async def test_an_assignment_that_was_not_started_is_told_to_its_workers_process(pair: Pair):
    await pair.assigned()
    await pair.everything()
    pair.clock.advance(31.0)
    await pair.sweep()
    await pair.hears(Change.CONTROL)


async def test_a_cancelled_assignment_is_told_to_its_workers_process(pair: Pair):
    got = await pair.assigned()
    await pair.everything()
    await pair.one.apply([Transition.cancelled(got.seq)])
    await pair.hears(Change.CONTROL)


async def test_a_lost_worker_is_told_to_its_process(pair: Pair):
    got = await pair.running()
    await pair.everything()
    await pair.one.apply([Transition.worker_lost(got.seq, got.lease, "gone")])
    await pair.hears(Change.CONTROL)


@pytest.mark.parametrize("ok", [True, False], ids=["succeeded", "failed"])
async def test_a_workers_own_report_is_no_news_to_it(pair: Pair, ok: bool):
    got = await pair.running()
    await pair.everything()
    done = Transition.succeeded(got.seq, got.lease, None)
    report = done if ok else Transition.failed(got.seq, got.lease, "boom")
    (outcome,) = (await pair.one.apply([report])).outcomes
    assert outcome.applied
    assert Change.CONTROL not in await pair.everything()
