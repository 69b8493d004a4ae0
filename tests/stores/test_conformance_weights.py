"""Priority weights: low priorities get their share, nothing is left lying."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from jobqueue.core.job import JobSpec
from jobqueue.core.store import Claim
from tests.stores.driver import Driver, spec

WEIGHTS = {9: 5, 5: 3, 0: 1}


@pytest.fixture
async def weighted(driver: Driver) -> Driver:
    await driver.queue("weighted", priority_weights=WEIGHTS)
    return driver


def jobs(priority: int, count: int) -> list[JobSpec]:
    return [spec(b"%d" % n, queue="weighted", priority=priority) for n in range(count)]


@pytest.mark.req("jq:FR-025")
@pytest.mark.parametrize(("slots", "lots"), [(1, 270), (9, 270), (100, 450)])
async def test_each_priority_gets_its_share(weighted: Driver, slots: int, lots: int):
    for priority in WEIGHTS:
        await weighted.results(*jobs(priority, 7 * lots // 9))
    taken: Counter[int] = Counter()
    while taken.total() < lots:
        claimed = await weighted.claim(min(slots, lots - taken.total()), queues=["weighted"])
        taken.update(a.priority for a in claimed)
    for priority, weight in WEIGHTS.items():
        share = weight / sum(WEIGHTS.values())
        deviation = math.sqrt(lots * share * (1 - share))
        assert abs(taken[priority] - lots * share) < 5.2 * deviation, taken


async def test_within_a_priority_the_order_stays(weighted: Driver):
    for priority in WEIGHTS:
        await weighted.results(*jobs(priority, 30))
    claimed = [a for _ in range(9) for a in await weighted.claim(10, queues=["weighted"])]
    assert len(claimed) == 90
    for priority in WEIGHTS:
        numbers = [int(a.payload) for a in claimed if a.priority == priority]
        assert numbers == list(range(30))


async def test_no_slot_stays_empty_while_a_job_waits(weighted: Driver):
    await weighted.results(*jobs(9, 2), *jobs(0, 8))
    assert len(await weighted.claim(10, queues=["weighted"])) == 10


async def test_a_priority_without_a_weight_does_not_starve(weighted: Driver):
    await weighted.results(*jobs(3, 5))
    assert len(await weighted.claim(10, queues=["weighted"])) == 5
    await weighted.results(*jobs(9, 400), *jobs(3, 100))
    claimed = await weighted.claim(300, queues=["weighted"])
    assert any(a.priority == 3 for a in claimed)


async def test_other_queues_keep_their_strict_order(weighted: Driver):
    await weighted.results(*jobs(0, 5), *(spec(priority=p) for p in (1, 9, 5)))
    claimed = await weighted.store.jobs.claim([Claim(("q", "weighted"), ["w"] * 8)])
    assert len({a.id for a in claimed}) == 8
    assert [a.priority for a in claimed if a.queue == "q"] == [9, 5, 1]


async def test_an_expired_job_takes_nobodys_turn(weighted: Driver):
    await weighted.results(*(spec(queue="weighted", priority=9, ttl=5.0) for _ in range(50)))
    weighted.clock.advance(5.0)
    await weighted.results(*jobs(0, 3))
    assert [a.priority for a in await weighted.claim(10, queues=["weighted"])] == [0, 0, 0]
