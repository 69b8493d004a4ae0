"""What is held is still found where reading all of it has become slow."""

from __future__ import annotations

import pytest
import pytest_asyncio

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Rules
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import accept, worker

CLAIM = [Claim(("q",), ["w"])]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[16, 1])
def few(request) -> int:
    return request.param


@pytest_asyncio.fixture
async def pair(postgres_dsn, clock, few):
    """Two servers; reading what is held is slow for the first, and stays so."""
    stores = [PostgresStore(postgres_dsn, rules=Rules(), clock=clock, few=few) for _ in range(2)]
    for store in stores:
        await store.open()
        await store.queues.create(Queue(name="q"))
    stores[0].workers._holding.measured(1.0)
    stores[0].workers._holding.looked((), 0.03)
    await stores[0].workers.register(worker("w", concurrency=10))
    yield stores
    for store in stores:
        await store.close()


async def test_its_own_claims_are_known(pair, clock):
    slow, _ = pair
    await accept(slow, 2)
    held = [*await slow.jobs.claim(CLAIM), *await slow.jobs.claim(CLAIM)]
    assert slow.workers._holding.slow
    assert {one.lease for one in await slow.workers.held()} == {one.lease for one in held}
    assert [one.running for one in await slow.workers.all()] == [2]
    answer = slow.workers.pulse("w", 1, [held[0].lease])
    assert (answer.lost, [one.lease for one in answer.unlisted]) == ([], [held[1].lease])
    clock.advance(61.0)
    slow.workers._holding._looked_at = float("inf")  # no full look comes to its help
    due = await slow.upkeep.due(10)
    assert {one.seq for one in due.transitions} == {one.seq for one in held}


async def test_slow_looks_at_what_is_due_are_few(pair, clock):
    slow, _ = pair
    await accept(slow)
    await slow.jobs.claim(CLAIM)
    clock.advance(61.0)
    slow.workers._holding._looked_at = float("inf")
    slow.workers._holding.read([(number, 0) for number in slow.workers._holding._floors], 10.0)
    due = await slow.upkeep.due(10)
    assert due.transitions == []
    assert due.next_at is not None
    assert 100.0 < due.next_at - clock.now() <= 200.0
    slow.workers._holding._readable_at = float("-inf")
    assert len((await slow.upkeep.due(10)).transitions) == 1


async def test_nobody_is_told_that_a_lease_is_lost_which_another_server_gave(pair):
    slow, other = pair
    await accept(slow, 2)
    (theirs,) = await other.jobs.claim(CLAIM)
    (own,) = await slow.jobs.claim(CLAIM)
    assert theirs.seq < own.seq  # below where it begins to read
    assert slow.workers.pulse("w", 1, [theirs.lease, own.lease]).lost == []
    await other.jobs.apply([Transition.succeeded(theirs.seq, theirs.lease, None, 0.1)])
    assert slow.workers.pulse("w", 1, [theirs.lease, own.lease]).lost == [theirs.lease]


async def test_a_full_look_finds_what_others_claimed(pair, clock):
    slow, other = pair
    await accept(slow)
    (theirs,) = await other.jobs.claim(CLAIM)
    assert await slow.workers.held() == []
    slow.workers._holding._looked_at = float("-inf")
    await slow.upkeep.due(10)
    assert [one.lease for one in await slow.workers.held()] == [theirs.lease]


async def test_workers_are_counted_whole_unless_that_is_costly(pair):
    slow, other = pair
    await accept(slow)
    await other.jobs.claim(CLAIM)
    assert [one.running for one in await slow.workers.all()] == [1]
    slow.workers._holding.looked((), 1.0)
    assert [one.running for one in await slow.workers.all()] == [0]


def test_what_is_claimed_during_a_look_is_not_forgotten():
    holding = Holding()
    holding.measured(1.0)
    holding.begin()
    holding._meanwhile[7] = 3
    holding.looked([(7, 9), (8, 1)], 1.0)
    assert (holding.floor(7), holding.floor(8)) == (3, 1)
    assert not holding.wants_look()  # it took long: not again at once
    holding.looked([(7, 9)], 0.0)
    assert not holding.slow
    assert holding.floor(7) == 0
