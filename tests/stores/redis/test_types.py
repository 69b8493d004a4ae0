"""Peculiar to Redis: a sorted set for each queue and type, and the index of a queue's types."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.stores.redis import jobs as redis_jobs
from jobqueue.stores.redis.store import RedisStore
from tests.stores.driver import new, spec
from tests.stores.redis.conftest import OpenStore, Victim

TYPES = "{jq}:ready_types:q"


def claim(slots: int, *types: str, queue: str = "q") -> list[Claim]:
    return [Claim((queue,), ["w"] * slots, types=frozenset(types) if types else None)]


async def check_index(client: Redis, queue: str = "q") -> None:
    """It has the types with waiting jobs, each no later than its first one; no others."""
    pairs: Any = await client.zrange(f"{{jq}}:ready_types:{queue}", 0, -1, withscores=True)
    index = dict(pairs)
    async for key in client.scan_iter(f"{{jq}}:ready:{queue}:*"):
        [first] = await client.zrange(key, 0, 0, withscores=True)
        assert index.pop(key.removeprefix(f"{{jq}}:ready:{queue}:")) <= first[1]
    assert index == {}


# -- sets come and go ------------------------------------------------------------------------


async def test_the_index_follows_every_way_in_and_out(open_store, client):
    clock = ManualClock()
    store: RedisStore = await open_store(clock=clock)
    await store.jobs.submit(
        new(*(spec(type=kind, priority=n % 3) for n, kind in enumerate("abcabc")))
    )
    await check_index(client)
    await store.jobs.submit(new(spec(type="later", delay=5.0), spec(type="brief", ttl=5.0)))
    await check_index(client)
    (first, second) = await store.jobs.claim(claim(2, "a"))
    await check_index(client)
    assert "a" not in await client.zrange(TYPES, 0, -1)
    await store.jobs.apply([Transition.handed_back(first.seq, first.lease)])
    await check_index(client)
    await store.jobs.apply([Transition.failed(second.seq, second.lease, "boom")])
    waiting = await store.jobs.claim(claim(9))
    await check_index(client)
    assert await client.zcard(TYPES) == 0
    for one in waiting:
        await store.jobs.apply([Transition.failed(one.seq, one.lease, "boom", retryable=False)])
        await store.jobs.apply([Transition.retried_by_hand(one.seq)])
    await check_index(client)
    clock.advance(6.0)
    due = await store.upkeep.due(100)
    assert due.promoted == 1
    await store.jobs.apply(due.transitions)
    await check_index(client)
    await store.jobs.apply([Transition.cancelled(waiting[-1].seq)])
    await check_index(client)
    assert await store.jobs.claim(claim(99)) != []
    assert [key async for key in client.scan_iter("{jq}:ready*")] == []


async def test_a_deleted_queue_leaves_no_sets(open_store, client):
    store: RedisStore = await open_store()
    await store.queues.create(Queue(name="gone"))
    await store.jobs.submit(new(*(spec(queue="gone", type=kind) for kind in "ab")))
    for one in await store.jobs.claim(claim(2, queue="gone")):
        await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None)])
    assert await store.queues.delete("gone") == 0
    assert [key async for key in client.scan_iter("{jq}:ready*gone*")] == []


# -- cost ------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def counted(victim: Victim, open_store: OpenStore) -> RedisStore:
    """A store on a Redis that nobody else uses."""
    return await open_store(victim.url)


async def commands_for(victim: Victim, store: RedisStore, wanted: list[Claim]) -> int:
    """How many commands a claim's script runs."""
    victim.send("CONFIG", "RESETSTAT")
    await store.jobs.claim(wanted)
    async with Redis.from_url(victim.url) as client:
        return sum(one["calls"] for one in (await client.info("commandstats")).values())


@pytest.mark.parametrize("weights", [None, {9: 3, 1: 1}], ids=["by priority", "by weight"])
async def test_a_thousand_other_types_in_front_cost_a_claim_nothing(victim, counted, weights):
    store = counted
    await store.queues.create(Queue(name="mixed", priority_weights=weights))

    async def measured() -> int:
        await store.jobs.submit(new(*(spec(queue="mixed", type=kind) for kind in "aba")))
        return await commands_for(victim, store, claim(9, "a", "b", queue="mixed"))

    alone = await measured()
    await store.jobs.submit(
        new(*(spec(queue="mixed", type=f"t{n % 1_000}", priority=9) for n in range(3_000)))
    )
    assert await measured() <= alone + 2
    assert len(await store.queues.waiting_types(2)) == 1_000


async def test_a_claim_for_every_type_looks_at_no_more_types_than_it_takes_jobs(victim, counted):
    store = counted
    await store.jobs.submit(new(*(spec(type="t0") for _ in range(10))))
    one = await commands_for(victim, store, claim(3))
    await store.jobs.submit(new(*(spec(type=f"t{n}") for n in range(1_000))))
    assert await commands_for(victim, store, claim(3)) <= one + 2


async def test_a_claim_that_names_all_types_there_are_looks_at_no_more_than_it_takes_jobs(
    victim, counted
):
    """Where every worker knows every type, their number costs nothing."""
    store = counted
    await store.jobs.submit(new(*(spec(b"first", type="t0") for _ in range(10))))
    one = await commands_for(victim, store, claim(3, "t0"))
    known = [f"t{n}" for n in range(1_000)]
    await store.jobs.submit(new(*(spec(type=kind) for kind in known)))
    assert await commands_for(victim, store, claim(3, *known)) <= one + 2
    got = await store.jobs.claim(claim(6, *known))
    assert [(job.payload, job.type) for job in got] == [
        *[(b"first", "t0")] * 4,
        (b"x", "t0"),
        (b"x", "t1"),
    ]


async def test_a_type_that_was_looked_at_in_vain_is_not_looked_at_again(victim, counted):
    """What was taken of a type leaves it too early in the index."""
    store = counted
    await store.jobs.submit(new(*(spec(type=f"t{n}", priority=9) for n in range(50))))
    await store.jobs.submit(new(*(spec(type="t0") for _ in range(50))))
    await store.jobs.submit(new(*(spec(type=f"t{n}", priority=5) for n in range(1, 50))))
    for n in range(50):
        await store.jobs.claim(claim(1, f"t{n}"))
    first = await commands_for(victim, store, claim(1))
    again = await commands_for(victim, store, claim(1))
    assert again < first / 2


async def test_more_types_than_a_command_has_arguments(open_store):
    store: RedisStore = await open_store()
    await store.jobs.submit(
        new(spec(b"0", type="t1"), spec(b"1", type="t8999"), spec(b"2", type="no"))
    )
    got = await store.jobs.claim(claim(9, *(f"t{n}" for n in range(9_000))))
    assert [one.payload for one in got] == [b"0", b"1"]


class Counting(Observer):
    def __init__(self) -> None:
        self.claims = 0

    def queried(self, name: str, seconds: float) -> None:
        self.claims += name == "claim"


@pytest.mark.parametrize("weights", [None, {9: 5, 1: 1}], ids=["by priority", "by weight"])
async def test_a_pile_of_expired_jobs_of_many_types_is_passed_over_in_parts(
    open_store, client, weights
):
    clock, observer = ManualClock(), Counting()
    store: RedisStore = await open_store(clock=clock, observer=observer)
    await store.queues.create(Queue(name="pile", priority_weights=weights))
    await store.jobs.submit(
        new(*(spec(queue="pile", type=f"t{n % 700}", ttl=1.0) for n in range(2_500)))
    )
    clock.advance(2.0)
    wanted = new(*(spec(queue="pile", type=f"t{n}") for n in range(3)))
    await store.jobs.submit(wanted)
    known = [f"t{n}" for n in range(700)]
    got = await store.jobs.claim(claim(5, *known, queue="pile"))
    assert [one.id for one in got] == [one.id for one in wanted]
    assert observer.claims == 3
    await check_index(client, "pile")
    assert await client.exists("{jq}:ready_types:pile") == 0


# -- what an earlier version left ------------------------------------------------------------


async def lay_out_as_before(client: Redis, *queues: str) -> None:
    """One sorted set for each queue, and no index: as the version before has it."""
    for queue in queues:
        async for key in client.scan_iter(f"{{jq}}:ready:{queue}:*"):
            await client.zunionstore(f"{{jq}}:ready:{queue}", [f"{{jq}}:ready:{queue}", key])
            await client.delete(key)
        await client.delete(f"{{jq}}:ready_types:{queue}")


async def test_what_an_earlier_version_left_is_claimed_by_type(open_store, client):
    first: RedisStore = await open_store()
    await first.queues.create(Queue(name="other"))
    jobs = new(
        *(spec(type="ab"[n % 2], priority=n % 4) for n in range(2_200)),
        *(spec(queue="other") for _ in range(300)),
        spec(type="a", delay=60.0),
    )
    await first.jobs.submit(jobs)
    (held,) = await first.jobs.claim(claim(1, "b"))
    await first.close()
    await lay_out_as_before(client, "q", "other")
    store: RedisStore = await open_store()
    assert not await client.exists("{jq}:ready:q", "{jq}:ready:other")
    await check_index(client)
    await check_index(client, "other")
    expected = sorted(range(0, 2_200, 2), key=lambda n: (-(n % 4), n))
    got = await store.jobs.claim(claim(2_000, "a"))
    assert [one.id for one in got] == [jobs[n].id for n in expected]
    rest = await store.jobs.claim([Claim(("q", "other"), ["w"] * 2_000)])
    assert len({one.id for one in [*got, held, *rest]}) == 2_500 == 1 + len(got) + len(rest)
    assert (await store.queues.stats("q"))[0].depth[State.PENDING] == 1


async def test_what_a_server_of_an_earlier_version_puts_there_meanwhile_is_found(
    open_store, client, monkeypatch
):
    store: RedisStore = await open_store()
    (job,) = new(spec(type="a"))
    await store.jobs.submit([job])
    await lay_out_as_before(client, "q")
    assert await store.jobs.claim(claim(1)) == []
    monkeypatch.setattr(redis_jobs, "_SORTED_EVERY", 0.0)
    assert (await store.upkeep.due(10)).promoted == 1
    assert [one.id for one in await store.jobs.claim(claim(1, "a"))] == [job.id]
    assert (await store.upkeep.due(10)).promoted == 0


async def test_a_job_that_is_claimed_already_is_not_moved(open_store, client):
    """As if the old set had not been cleaned: what is not PENDING never comes back."""
    store: RedisStore = await open_store()
    (job,) = new(spec(type="a"))
    await store.jobs.submit([job])
    (held,) = await store.jobs.claim(claim(1))
    await client.zadd("{jq}:ready:q", {held.id: 1.0, "no such job": 2.0})
    again: RedisStore = await open_store()
    assert not await client.exists("{jq}:ready:q")
    assert await again.jobs.claim(claim(1)) == []


async def test_what_a_server_of_an_earlier_version_ended_is_not_claimed(open_store, client):
    """It takes a cancelled job out of the set that it knows, and cleans up after it."""
    store: RedisStore = await open_store()
    jobs = new(*(spec(type="a") for _ in range(3)))
    await store.jobs.submit(jobs)
    await client.hset(f"{{jq}}:job:{jobs[0].id}", "status", "DEAD_LETTERED")
    await client.delete(f"{{jq}}:job:{jobs[1].id}")
    assert [one.id for one in await store.jobs.claim(claim(3, "a"))] == [jobs[2].id]
    await check_index(client)
