"""Per-job locks on a Redis that is well."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from jobqueue.metrics import Metrics
from jobqueue.stores.redis.locks import LIFE, PREFIX, RedisLocks

Opened = Callable[..., "asyncio.Future[RedisLocks]"]


@pytest_asyncio.fixture
async def opened(redis_url: str) -> AsyncIterator[Opened]:
    """Makes locks of several servers."""
    async with AsyncExitStack() as stack:

        async def make(**options) -> RedisLocks:
            locks = RedisLocks(redis_url, **{"timeout": 5.0, **options})
            stack.push_async_callback(locks.close)
            await locks.open()
            assert locks.health().ok
            return locks

        yield make  # type: ignore[misc]


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


def names(count: int) -> list[str]:
    return [f"{uuid.uuid4()}:1" for _ in range(count)]


@pytest.mark.req("jq:FR-015")
async def test_a_lock_is_won_by_one_server(opened):
    one, other = await opened(), await opened()
    jobs = names(5)
    assert await one.take(jobs[:3], 5) == [0, 1, 2]
    assert await other.take(jobs, 5) == [3, 4]
    assert await other.take(jobs[:3], 5) == []


@pytest.mark.req("jq:FR-015")
async def test_no_two_servers_win_the_same_job(opened):
    servers = [await opened() for _ in range(4)]
    jobs = names(400)
    won = await asyncio.gather(*(
        server.take(jobs[start : start + 100], 60)
        for start in range(0, 400, 50)
        for server in servers
    ))  # fmt: skip
    # By server: a server may win its own lock again, and PostgreSQL sorts that out.
    holders: dict[str, set[int]] = {}
    for number, positions in enumerate(won):
        start = 50 * (number // len(servers))
        for position in positions:
            holders.setdefault(jobs[start + position], set()).add(number % len(servers))
    assert set(map(len, holders.values())) == {1}
    assert len(holders) == 400


async def test_it_stops_when_enough_are_won(opened, client):
    one, other = await opened(), await opened()
    jobs = names(6)
    assert await one.take([jobs[1]], 1) == [0]
    assert await other.take(jobs, 3) == [0, 2, 3]
    assert await client.exists(*(PREFIX + job for job in jobs[4:])) == 0
    assert await one.take(jobs[4:], 2) == [0, 1]


async def test_very_many_are_taken_piece_by_piece(opened):
    one, other = await opened(), await opened()
    jobs = names(3500)
    held = [0, 999, 1000, 2001]
    assert await one.take([jobs[position] for position in held], 4) == [0, 1, 2, 3]
    free = [position for position in range(3500) if position not in held]
    assert await other.take(jobs, 2500) == free[:2500]
    assert await one.take(jobs, 3500) == [*held, *free[2500:]]


async def test_the_next_attempt_is_another_lock(opened):
    one, other = await opened(), await opened()
    job = str(uuid.uuid4())
    assert await one.take([f"{job}:1"], 1) == [0]
    assert await other.take([f"{job}:1", f"{job}:2"], 1) == [1]


async def test_a_server_wins_its_own_lock_again(opened, client):
    """After a write that failed the same server must be able to try again at once."""
    one, other = await opened(), await opened()
    (job,) = names(1)
    assert await one.take([job], 1) == [0]
    await client.pexpire(PREFIX + job, 1000)
    assert await one.take([job], 1) == [0]
    assert await client.pttl(PREFIX + job) > 1000  # for the full time
    assert await other.take([job], 1) == []


async def test_a_lock_runs_out_by_itself(opened, client):
    one, other = await opened(life=0.02), await opened()
    (job,) = names(1)
    assert await one.take([job], 1) == [0]
    while await client.exists(PREFIX + job):
        await asyncio.sleep(0.005)
    assert await other.take([job], 1) == [0]
    assert 0 < await client.pttl(PREFIX + job) <= LIFE * 1000


async def test_nothing_wanted_asks_nobody(redis_url):
    locks = RedisLocks(redis_url)  # not open: a question would be answered None
    assert await locks.take([], 5) == []
    assert await locks.take(["a:1"], 0) == []
    assert await locks.take(["a:1"], 1) is None
    await locks.close()


async def test_a_prefix_keeps_systems_apart(opened):
    one, other = await opened(), await opened(prefix="{other}:lock:")
    jobs = names(2)
    assert await one.take(jobs, 2) == [0, 1]
    assert await other.take(jobs, 2) == [0, 1]


async def test_something_else_under_the_name_is_not_won(opened, client):
    locks = await opened()
    jobs = names(3)
    await client.lpush(PREFIX + jobs[1], "x")
    assert await locks.take(jobs, 3) == [0, 2]
    assert locks.health().ok


async def test_it_can_be_closed_twice_and_opened_again(redis_url):
    locks = RedisLocks(redis_url, timeout=5.0)
    await locks.close()
    await locks.open()
    await locks.open()
    assert await locks.take(names(1), 1) == [0]
    await locks.close()
    await locks.close()
    assert not locks.health().ok
    assert await locks.take(names(1), 1) is None
    await locks.open()
    assert await locks.take(names(1), 1) == [0]
    await locks.close()


@pytest.mark.req("jq:FR-040")
async def test_calls_are_measured(opened):
    metrics = Metrics()
    locks = await opened(observer=metrics)
    for _ in range(3):
        await locks.take(names(2), 2)
    text = (await metrics.render())[0].decode()
    assert 'jq_redis_operation_duration_seconds_count{operation="take"} 3.0' in text
    assert "jq_redis_up 1.0" in text
    assert "jq_redis_errors_total{" not in text
