"""What one process tells the others on the same store. Memory has no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Assignment, Transition, WorkerStatus
from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim, Rules, Store
from jobqueue.stores.memory import MemoryStore
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
                await self.one.workers.register(worker())
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
        await self.one.jobs.submit(new(spec(timeout=5.0, max_retries=0, priority=9)))
        (got,) = await self.two.jobs.claim([Claim(("q",), ["w"])])
        return got

    async def running(self) -> Assignment:
        got = await self.assigned()
        (started,) = (await self.two.jobs.apply([Transition.started(got.seq, got.lease)])).outcomes
        assert started.applied
        return got

    async def sweep(self) -> None:
        """The first process makes the moves that are due."""
        due = await self.one.upkeep.due(10)
        assert due.transitions
        outcomes = (await self.one.jobs.apply(due.transitions)).outcomes
        assert all(outcome.applied for outcome in outcomes)


@pytest_asyncio.fixture
async def pair(store_name: str, places: Places) -> AsyncIterator[Pair]:
    place, clock = places.new(), ManualClock()
    rules = Rules(assignment_timeout=30.0)
    stores = [STORES[store_name](lambda: place, rules, clock) for _ in range(2)]
    for store in stores:
        await store.open()
    await stores[0].queues.create(Queue(name="q"))
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
    await pair.one.jobs.apply([Transition.cancelled(got.seq)])
    await pair.hears(Change.CONTROL)


async def test_a_lost_worker_is_told_to_its_process(pair: Pair):
    got = await pair.running()
    await pair.everything()
    await pair.one.jobs.apply([Transition.worker_lost(got.seq, got.lease, "gone")])
    await pair.hears(Change.CONTROL)


@pytest.mark.parametrize("way", ["succeeded", "failed", "cancelled"])
async def test_an_end_is_told(pair: Pair, way: str):
    got = await pair.running() if way != "cancelled" else await pair.assigned()
    await pair.everything()
    moves = {
        "succeeded": Transition.succeeded(got.seq, got.lease, None),
        "failed": Transition.failed(got.seq, got.lease, "boom"),
        "cancelled": Transition.cancelled(got.seq),
    }
    await pair.one.jobs.apply([moves[way]])
    await pair.hears(Change.ENDED)


async def test_a_job_that_comes_back_is_work(pair: Pair):
    got = await pair.running()
    await pair.one.jobs.apply([Transition.failed(got.seq, got.lease, "boom")])
    await pair.everything()
    await pair.one.jobs.apply([Transition.retried_by_hand(got.seq)])
    await pair.hears(Change.WORK)


@pytest.mark.parametrize("ok", [True, False], ids=["succeeded", "failed"])
async def test_a_workers_own_report_is_no_news_to_it(pair: Pair, ok: bool):
    got = await pair.running()
    await pair.everything()
    done = Transition.succeeded(got.seq, got.lease, None)
    report = done if ok else Transition.failed(got.seq, got.lease, "boom")
    (outcome,) = (await pair.one.jobs.apply([report])).outcomes
    assert outcome.applied
    assert Change.CONTROL not in await pair.everything()


async def _ends(pair: Pair) -> None:
    got = await pair.running()
    await pair.one.jobs.apply([Transition.succeeded(got.seq, got.lease, None)])


async def _dies(pair: Pair) -> None:
    got = await pair.running()
    await pair.one.jobs.apply([Transition.failed(got.seq, got.lease, "boom", retryable=False)])


async def _comes_back(pair: Pair) -> None:
    got = await pair.assigned()
    await pair.everything()
    await pair.one.jobs.apply([Transition.handed_back(got.seq, got.lease)])


async def _is_promoted(pair: Pair) -> None:
    await pair.one.jobs.submit(new(spec(delay=5.0)))
    await pair.everything()
    pair.clock.advance(6.0)
    assert (await pair.one.upkeep.due(10)).promoted == 1


async def _is_resumed(pair: Pair) -> None:
    await pair.one.queues.pause("q", True)
    await pair.everything()
    await pair.one.queues.pause("q", False)


async def _is_cancelled(pair: Pair) -> None:
    got = await pair.running()
    await pair.everything()
    assert await pair.one.jobs.request_cancel(got.seq)


async def _is_drained(pair: Pair) -> None:
    assert await pair.one.workers.set_status("w", WorkerStatus.DRAINING)


async def _is_silent(pair: Pair) -> None:
    term = await pair.one.leadership.lead(1, 600.0)
    assert term is not None
    pair.clock.advance(61.0)
    await pair.everything()
    assert await pair.one.workers.retire_silent(60.0, term) == ["w"]


async def _says_goodbye(pair: Pair) -> None:
    assert await pair.one.workers.retire("w", 1)


async def _resigns(pair: Pair) -> None:
    term = await pair.one.leadership.lead(1, 600.0)
    assert term is not None
    await pair.everything()
    await pair.one.leadership.resign(term)


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        pytest.param(_ends, Change.ENDED, id="a job is done"),
        pytest.param(_dies, Change.ENDED, id="a job is dead-lettered"),
        pytest.param(_comes_back, Change.WORK, id="a job comes back"),
        pytest.param(_is_promoted, Change.WORK, id="a delayed job is promoted"),
        pytest.param(_is_resumed, Change.WORK, id="a queue is resumed"),
        pytest.param(_is_cancelled, Change.CONTROL, id="a running job is cancelled"),
        pytest.param(_is_drained, Change.CONTROL, id="a worker is drained"),
        pytest.param(_is_silent, Change.CONTROL, id="a worker is silent"),
        pytest.param(_says_goodbye, Change.CONTROL, id="a worker says goodbye"),
        pytest.param(_resigns, Change.CONTROL, id="a leader resigns"),
    ],
)
async def test_other_processes_are_told(
    pair: Pair, happens: Callable[[Pair], Awaitable[None]], told: Change
):
    await pair.everything()
    await happens(pair)
    await pair.hears(told)


async def test_memory_has_nobody_to_tell():
    store = MemoryStore()
    heard: list[Change] = []
    store.on_change(heard.append)
    await store.queues.create(Queue(name="q"))
    await accept(store)
    await asyncio.sleep(0)
    assert heard == []
