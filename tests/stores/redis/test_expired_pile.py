"""Jobs that expired while nobody looked, before those that are still wanted."""

from __future__ import annotations

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.observer import Observer
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from tests.stores.driver import new, spec


class Counting(Observer):
    def __init__(self) -> None:
        self.claims = 0

    def queried(self, name: str, seconds: float) -> None:
        self.claims += name == "claim"


@pytest.mark.parametrize("weights", [None, {9: 5, 1: 1}])
async def test_a_pile_of_expired_jobs_is_passed_over_in_parts(open_store, weights):
    """A script that looks at all of them keeps every other caller waiting, heartbeats too."""
    clock, observer = ManualClock(), Counting()
    store = await open_store(clock=clock, observer=observer)
    await store.queues.create(Queue(name="pile", priority_weights=weights))
    await store.jobs.submit(new(*(spec(queue="pile", ttl=1.0) for _ in range(2_500))))
    clock.advance(2.0)
    wanted = new(*(spec(queue="pile") for _ in range(3)), spec())
    await store.jobs.submit(wanted)
    claims = [Claim(("pile",), ["a", "b"]), Claim(("q", "pile"), ["c", "d", "e"])]
    got = await store.jobs.claim(claims)
    assert {one.id for one in got} == {one.id for one in wanted}
    assert [one.worker_id for one in got] == ["a", "b", "c", "d"]
    assert observer.claims == 3
    assert await store.jobs.claim(claims) == []
    assert observer.claims == 4


async def test_every_part_has_what_was_left_of_the_slots(open_store):
    clock = ManualClock()
    store = await open_store(clock=clock)
    first = new(*(spec(priority=9) for _ in range(2)))
    last = new(*(spec(priority=1) for _ in range(2)))
    await store.jobs.submit(first)
    await store.jobs.submit(new(*(spec(ttl=1.0, priority=5) for _ in range(1_500))))
    await store.jobs.submit(last)
    clock.advance(2.0)
    got = await store.jobs.claim([Claim(("q",), ["a", "b", "c", "d"])])
    assert [one.id for one in got] == [one.id for one in first + last]
    assert [one.worker_id for one in got] == ["a", "b", "c", "d"]
