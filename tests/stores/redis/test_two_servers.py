"""Two servers' stores on one PostgreSQL, with their locks in one Redis that is disturbed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.metrics import Metrics
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.locks import RedisLocks
from tests import patience
from tests.stores.driver import accept, worker

JOBS = 600


class Server:
    """A store as a jq-server has it, and what it handed out."""

    def __init__(self, dsn: str, redis_url: str, name: str) -> None:
        self.name = name
        self.metrics = Metrics()
        self.locks = RedisLocks(redis_url, observer=self.metrics, timeout=patience.stretched(0.5))
        self.store = PostgresStore(
            dsn, observer=self.metrics, locks=self.locks, patience=patience.stretched(5.0)
        )
        self.got: list[str] = []

    async def claim_until(self, enough) -> None:
        while not enough():
            claims = [Claim(("q",), [self.name] * 7)]
            found = await asyncio.gather(*(self.store.jobs.claim(claims) for _ in range(3)))
            self.got += [assignment.id for one in found for assignment in one]

    def answered(self) -> float:
        name = "jq_redis_operation_duration_seconds_count"
        return self.metrics.registry.get_sample_value(name, {"operation": "take"}) or 0.0


@pytest_asyncio.fixture
async def servers(postgres_dsn, victim) -> AsyncIterator[list[Server]]:
    made = [Server(postgres_dsn, victim.url, name) for name in ("one", "two")]
    try:
        for server in made:
            await server.store.open()
            await server.store.workers.register(worker(server.name, concurrency=JOBS))
        await made[0].store.queues.create(Queue(name="q"))
        yield made
    finally:
        for server in made:
            await server.store.close()


@pytest.mark.req("jq:FR-015", "jq:NFR-008")
async def test_each_job_goes_to_one_server_by_its_lock(servers):
    accepted = await accept(servers[0].store, JOBS)

    def enough() -> bool:
        return sum(len(server.got) for server in servers) >= JOBS

    async with patience.timeout(30):
        await asyncio.gather(*(server.claim_until(enough) for server in servers))
    assert sorted(servers[0].got + servers[1].got) == sorted(accepted)
    assert all(server.answered() for server in servers)
    assert [part.name for server in servers for part in server.store.components()] == ["redis"] * 2
    assert all(part.ok for server in servers for part in server.store.components())


@pytest.mark.req("jq:NFR-009")
@pytest.mark.parametrize("trouble", ["flushed", "gone", "hanging", "read-only", "restarted"])
async def test_redis_in_trouble_costs_no_job(servers, victim, trouble):
    """PostgreSQL is the record: what Redis forgets or refuses is found there again."""
    accepted = await accept(servers[0].store, JOBS)

    async def claim(count: int) -> None:
        def enough() -> bool:
            return sum(len(server.got) for server in servers) >= count

        async with patience.timeout(30):
            await asyncio.gather(*(server.claim_until(enough) for server in servers))

    await claim(JOBS // 3)
    if trouble == "flushed":
        victim.send("FLUSHALL")
        victim.send("SCRIPT", "FLUSH")
    elif trouble == "hanging":
        victim.signal(signal.SIGSTOP)
    elif trouble == "read-only":
        victim.send("REPLICAOF", "127.0.0.1", "1")
    else:
        await asyncio.to_thread(victim.stop)
    if trouble == "restarted":
        await asyncio.to_thread(victim.start)
    await claim(JOBS)
    assert sorted(servers[0].got + servers[1].got) == sorted(accepted)
    (stats,) = await servers[1].store.queues.stats("q")
    assert stats.depth[State.ASSIGNED] == JOBS
    well = trouble in ("flushed", "restarted")
    for server in servers:
        async with patience.timeout(15):
            while server.locks.health().ok is not well:
                await asyncio.sleep(0.01)
                if not well:  # a server that has asked nothing since knows nothing of it
                    await accept(server.store)
                    await server.store.jobs.claim([Claim(("q",), ["one"])])


@pytest.mark.req("jq:FR-015")
async def test_a_job_whose_lock_another_server_holds_is_not_handed_out(
    servers, victim, monkeypatch
):
    one, other = servers
    accepted = await accept(one.store, 3)
    take = one.locks.take

    async def too_late(names, wanted):
        first = [name for name in names if name.endswith(":1")][:1] if not held else []
        held.extend(first)
        await other.locks.take(first, 1)
        return await take(names, wanted)

    held: list[str] = []
    monkeypatch.setattr(one.locks, "take", too_late)
    got = await one.store.jobs.claim([Claim(("q",), ["one"] * 3)])
    assert [assignment.id for assignment in got] == accepted[1:]
    victim.send("FLUSHALL")  # the lock is gone, and the job is found again
    await one.claim_until(lambda: one.got)
    assert one.got == accepted[:1]
