"""What is peculiar to the memory store: its cost."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import NewJob, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import JobFilter, Rules
from jobqueue.stores.memory import MemoryStore
from tests.stores.driver import Driver, new, spec, worker

ROUND = 200  # jobs that are made and removed together


@pytest.fixture
async def driver() -> Driver:
    clock = ManualClock()
    driver = Driver(MemoryStore(clock=clock), clock, Rules())
    await driver.queue()
    return driver


def test_it_says_that_it_is_not_durable():
    assert MemoryStore.durable is False
    assert MemoryStore.name == "memory"


def _batch(count: int, first: int) -> list[NewJob]:
    return new(*(spec(b"payload-%09d" % (first + n), priority=n % 10) for n in range(count)))


async def test_a_pending_job_costs_at_most_two_kib(driver: Driver):
    """Everything that a waiting job keeps alive counts: spec, payload, id, event, heap entry."""
    count = 5_000
    await driver.store.jobs.submit(_batch(1_000, 0))
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(0, count, 1_000):
            await driver.store.jobs.submit(_batch(1_000, first))
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / count <= 2 * 1024, f"{used / count:.0f} bytes per pending job"


async def test_cancelled_and_deleted_jobs_do_not_pile_up(driver: Driver):
    """Submit, cancel and delete again and again: memory stays where it is."""

    async def round_trip() -> None:
        jobs = _batch(ROUND, 0)
        await driver.store.jobs.submit(jobs)
        found = [await driver.job(job.id) for job in jobs]
        await driver.store.jobs.apply([Transition.cancelled(job.seq) for job in found])
        for job in jobs:
            await driver.store.upkeep.delete_job(job.id)

    for _ in range(10):
        await round_trip()
    gc.collect()
    tracemalloc.start()
    try:
        await round_trip()
        gc.collect()
        first, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            await round_trip()
        gc.collect()
        last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    per_job = (last - first) / (20 * ROUND)
    assert per_job < 100, f"each deleted job leaves {per_job:.0f} bytes behind"


async def test_claims_stay_quick_after_many_cancels(driver: Driver):
    """Dead entries are swept out of the heap instead of being waded through at every claim."""
    for _ in range(20):
        jobs = _batch(1_000, 0)
        await driver.store.jobs.submit(jobs)
        found = [await driver.job(job.id) for job in jobs]
        await driver.store.jobs.apply([Transition.cancelled(job.seq) for job in found])
    survivor = await driver.submit()
    assert [a.id for a in await driver.claim(5)] == [survivor]
    assert await driver.claim(5) == []


async def test_timers_of_finished_jobs_do_not_pile_up(driver: Driver):
    async def round_trip() -> None:
        jobs = new(*(spec(ttl=1e6) for _ in range(ROUND)))
        await driver.store.jobs.submit(jobs)
        assignments = await driver.claim(ROUND)
        await driver.apply(*(Transition.succeeded(a.seq, a.lease, None) for a in assignments))
        driver.clock.advance(1.0)
        await driver.store.upkeep.prune_done(driver.clock.now(), 1_000, await driver.term())

    for _ in range(10):
        await round_trip()
    gc.collect()
    tracemalloc.start()
    try:
        await round_trip()
        gc.collect()
        first, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            await round_trip()
        gc.collect()
        last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (last - first) / (20 * ROUND) < 150


async def test_pages_do_not_count_through_numbers_that_are_gone(driver: Driver):
    """An old job stays while all that came after it was removed."""
    assert isinstance(driver.store, MemoryStore)
    old = await driver.submit()
    driver.store._contents.seq = itertools.count(10**15)
    newer = [await driver.submit() for _ in range(3)]
    place = (await driver.job(newer[1])).seq
    jobs = await driver.store.reads.list_jobs(JobFilter(before_seq=place))
    assert [job.id for job in jobs] == [newer[0], old]
    assert (await driver.store.reads.dead_letters(JobFilter(before_seq=place))).looked_at == 0


class Meanwhile(list[int]):
    """Leases of a heartbeat; when they are looked at, the loop's thread has its turn."""

    def __init__(self, leases: list[int], turn: Callable[[], None]) -> None:
        super().__init__(leases)
        self._turn = turn

    def __iter__(self) -> Iterator[int]:
        self._turn()
        return super().__iter__()


async def test_a_heartbeat_limits_no_job_whose_start_is_written_meanwhile(driver: Driver):
    """Heartbeats come on threads of their own."""
    await driver.store.workers.register(worker())
    one = await driver.assigned()

    def start() -> None:
        with pytest.raises(StopIteration):  # it waits for nothing
            driver.store.jobs.apply([Transition.started(one.seq, one.lease)]).send(None)

    leases = Meanwhile([one.lease], start)
    assert driver.store.workers.pulse("w", 1, leases, [one.lease]).known
    assert (await driver.job(one.id)).state is State.RUNNING
    driver.clock.advance(10 * driver.rules.assignment_timeout)
    assert (await driver.store.upkeep.due(10)).transitions == []
