"""The leader's roster on a real Redis, without Kafka: it finds out by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.job import Held, JobSpec
from jobqueue.core.queue import WaitingType
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import Dispatch, EngineSettings
from jobqueue.stores.redis.store import RedisStore
from tests.engine.rig import session_of
from tests.stores.driver import worker
from tests.streaming.system import until

pytestmark = [pytest.mark.integration, pytest.mark.req("sch:LOOP")]

SETTINGS = EngineSettings(dispatch=Dispatch.ROSTER, interval=0.05, leader_ttl=5.0, batch_size=1)


class Office:
    """An engine that assigns, and a store as workers have one."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, partitions=4)
        self.engine = Engine(RedisStore(url, partitions=4), SETTINGS)

    async def open(self) -> None:
        await self.engine.start()
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()
        await self.engine.stop()

    async def submit(self, count: int, type: str = "") -> None:
        for result in await self.engine.submit([JobSpec(payload=b"x", type=type)] * count):
            result.unwrap()

    async def holders(self, count: int) -> set[str]:
        """Who has the jobs, once so many are assigned."""

        async def assigned() -> set[str]:
            held = await self.store.workers.held()
            return {one.worker_id for one in held} if len(held) >= count else set()

        found: set[str] = await until(assigned, f"{count} jobs are assigned")
        return found


@pytest_asyncio.fixture
async def office(redis_url: str) -> AsyncIterator[Office]:
    made = Office(redis_url)
    await made.open()
    yield made
    await made.close()


async def test_a_worker_that_is_connected_elsewhere_keeps_nobody_from_work(
    office: Office, redis_url: str
) -> None:
    """It has no partition. Least loaded for ever, it would be meant first in every claim."""
    connected = RedisStore(redis_url)
    await connected.open()
    try:
        await connected.workers.register(worker("a connected one", queues=("default",)))
    finally:
        await connected.close()
    await office.store.workers.register(worker("w", queues=("default",), concurrency=9))
    await office.submit(5)
    assert await office.holders(5) == {"w"}


async def test_a_pool_without_tasks_leaves_queues_of_others_alone(office: Office) -> None:
    """It could only fail jobs of types that it lacks."""
    await office.store.workers.register(worker("w", queues=("default",), concurrency=9))
    await office.store.workers.register(worker("pool", queues=("*",), fallback=True))
    await office.submit(5)
    assert await office.holders(5) == {"w"}


async def test_workers_get_jobs_of_types_that_they_know(office: Office) -> None:
    """Old code and new code side by side, and a type that nobody knows in front."""
    knows = {"old": frozenset({"a"}), "new": frozenset({"a", "b"})}
    await office.submit(5, "c")
    for name, types in knows.items():
        info = worker(name, queues=("default",), concurrency=6, types=types)
        await office.store.workers.register(info)
    await office.submit(3, "b")
    await office.submit(9, "a")
    await office.holders(12)
    for name, types in knows.items():
        kinds = {one.type for one in await office.store.jobs.standing(None, name)}
        assert kinds <= types
        assert len(await office.store.workers.held(name)) == 6
    assert await office.store.queues.waiting_types(9) == [WaitingType("default", "c", 5)]
    await office.store.workers.register(worker("one more", queues=("default",), concurrency=9))
    assert await office.holders(17) == {"old", "new", "one more"}


async def test_a_worker_that_says_other_types_gets_those(office: Office) -> None:
    """The same life of it, as after a reconnect."""
    await office.store.workers.register(worker("w", queues=("default",), types=frozenset("a")))
    await office.submit(1, "b")
    await office.submit(1, "a")
    await office.holders(1)
    info = worker("w", queues=("default",), types=frozenset({"a", "b"}))
    await office.store.workers.register(info)
    await office.holders(2)
    assert {one.type for one in await office.store.jobs.standing(None, "w")} == {"a", "b"}


async def test_a_slot_that_an_attempt_overruns_gets_nothing(office: Office) -> None:
    """No lease is held for it. The worker that looks the least loaded would get every job."""
    await office.store.workers.register(worker("w", queues=("default",), concurrency=9))
    await office.store.workers.register(worker("slow", queues=("default",), concurrency=2))
    await asyncio.to_thread(office.store.workers.pulse, "slow", 1, [], withheld=1)

    async def noticed() -> bool:
        session = session_of(office.engine, "slow")
        return session is not None and session.info.concurrency == 1

    await until(noticed, "the leader has heard of it")
    await office.submit(5)
    assert await office.holders(5) == {"w", "slow"}
    assert len(await office.store.workers.held("slow")) == 1
    await asyncio.to_thread(office.store.workers.pulse, "slow", 1, [], withheld=0)
    await office.submit(6)
    await office.holders(11)
    assert len(await office.store.workers.held("slow")) == 2


async def test_looks_leave_most_of_the_time_to_others(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every end of a job is a reason to look. With many leases a look is long, and Redis does
    nothing else meanwhile."""
    store, looks = office.engine.store, list[tuple[float, float]]()
    real = store.workers.held

    async def held(worker_id: str | None = None) -> list[Held]:
        began = time.monotonic()
        await asyncio.sleep(0.1)
        found = await real(worker_id)
        looks.append((began, time.monotonic()))
        return found

    monkeypatch.setattr(store.workers, "held", held)
    while len(looks) < 5:
        assert office.engine._roster is not None
        office.engine._roster.look()
        await asyncio.sleep(0.01)
    for (began, ended), (following, _) in pairwise(looks):
        assert following - ended > min(2 * (ended - began), 0.9)  # a rest is at most a second


async def test_a_paused_type_is_left_out_and_tried_once(office: Office) -> None:
    """The leader reads the breakers of its workers from the store."""
    workers = office.store.workers
    await workers.register(
        worker("w", queues=("default",), concurrency=9, types=frozenset({"pay", "other"}))
    )
    await workers.set_breakers("w", 1, [OpenBreaker("pay", 3, 1e10)])
    await until(lambda: _paused(office), "the leader knows")
    await office.submit(3, "pay")
    await office.submit(2, "other")
    await office.holders(2)
    await workers.set_breakers("w", 1, [OpenBreaker("pay", 3, 1e10, 1)])
    await office.holders(3)
    await asyncio.sleep(0.3)
    assert len(await workers.held()) == 3
    await workers.set_breakers("w", 1, [])
    await office.holders(5)


async def _paused(office: Office) -> bool:
    session = session_of(office.engine, "w")
    return session is not None and bool(session.breakers)
