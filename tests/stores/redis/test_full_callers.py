"""A caller that has all the workers it may have costs Redis little."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from jobqueue.core.errors import RateLimited
from jobqueue.core.job import WorkerStatus
from jobqueue.core.store import Rules
from tests.stores.driver import worker

from .conftest import OpenStore, Victim

pytestmark = [pytest.mark.integration, pytest.mark.req("inp:PROD")]

MOST = 400


async def commands(redis: Redis) -> int:
    """How many Redis has run, those of scripts included."""
    stats = await redis.info("commandstats")
    return sum(row["calls"] for row in stats.values())


async def test_a_refused_worker_costs_the_same_whatever_its_caller_has(
    open_store: OpenStore, victim: Victim
) -> None:
    store = await open_store(victim.url, rules=Rules(workers_per_owner=MOST))
    await store.workers.register(worker("only", owner="bob"))
    for n in range(MOST):
        await store.workers.register(worker(f"w{n}", owner="alice"))
    redis = Redis.from_url(victim.url)
    async with redis:
        before = await commands(redis)
        for n in range(10):
            with pytest.raises(RateLimited):
                await store.workers.register(worker(f"more{n}", owner="alice"))
        assert await commands(redis) - before < MOST
        for n in range(3):
            await store.workers.set_status(f"w{n}", WorkerStatus.OFFLINE)
        for n in range(3):
            await store.workers.register(worker(f"more{n}", owner="alice"))
        with pytest.raises(RateLimited):
            await store.workers.register(worker("more3", owner="alice"))
    known = {one.info.id for one in await store.workers.all()}
    assert known == {"only", "more0", "more1", "more2"} | {f"w{n}" for n in range(3, MOST)}
