"""PostgreSQL and Redis disturbed under load: it goes on by itself, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
import redis

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.fleet.backing import PrivatePostgres, PrivateRedis
from jobqueue.stores.redis.locks import PREFIX
from tests import patience
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.load import Load, flows, settled
from tests.faults.processes import Site
from tests.history.checker import assert_kept
from tests.services.plugin import OwnPostgres, OwnRedis

WORKERS = 3
SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.5",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "6",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_SCHEDULER_ASSIGNMENT_TIMEOUT": "10",
    "JQ_LOG_LEVEL": "info",
}

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@asynccontextmanager
async def under_load(site: Site, *, crashed: bool = False) -> AsyncIterator[Load]:
    """Two servers, some workers and producers; judged at the end. No process may end by itself."""
    processes = [await site.server(number, JQ_WORKER_CONCURRENCY="0") for number in range(2)]
    processes += [await site.worker(f"w{number}") for number in range(WORKERS)]
    load = Load(site)
    load.start()
    try:
        await flows(site)
        yield load
    finally:
        await load.stop()
    await settled(site, 120)
    assert all(process.returncode is None for process in processes), site.log_tail()
    await site.end()
    evidence = await evidence_of(
        site,
        accepted=load.accepted,
        told_done=load.told_done,
        crashed=crashed,
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)
    assert len(load.accepted) > 100
    assert {evidence.jobs[job_id].state for job_id in load.accepted} == {State.DONE}
    assert load.accepted <= {run.job_id for run in site.runs()}


async def terminate_random_backends(postgres: PrivatePostgres, times: int) -> int:
    """Kill connections of the servers, one at a time; returns how many there were to kill."""
    killed = 0
    connection = await asyncpg.connect(postgres.dsn())
    try:
        for _ in range(times):
            pids = await connection.fetch(
                "SELECT pid FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            if pids:
                pid = random.choice(pids)["pid"]
                killed += await connection.fetchval("SELECT pg_terminate_backend($1)", pid)
            await asyncio.sleep(0.05)  # under load all the while
    finally:
        await connection.close()
    return killed


@pytest.mark.timeout(400)
@pytest.mark.req("jq:NFR-005", "jq:NFR-009")
async def test_postgres_restarts_and_loses_connections_under_load(
    site_of: SiteOf, own_postgres: OwnPostgres, redis_url: str
) -> None:
    postgres = own_postgres()
    site = site_of(2, db_url=postgres.dsn(), redis_url=redis_url, **SETTINGS)
    async with under_load(site, crashed=True):
        await asyncio.to_thread(postgres.restart, "immediate")
        await flows(site)
        assert await terminate_random_backends(postgres, 30) > 10
        await flows(site)
        await asyncio.to_thread(postgres.stop, "immediate")
        with pytest.raises(JobQueueError):  # nothing is accepted that would not be kept
            await submit_once(site)
        await asyncio.to_thread(postgres.restart)
        await flows(site)


async def submit_once(site: Site) -> None:
    backend = GrpcBackend(site.target, timeout=5)
    try:
        [result] = await backend.submit([JobSpec(payload=b'{"number": 0}', type="short")])
        result.unwrap()
    finally:
        await backend.stop()


async def redis_is_seen(site: Site, *, well: bool) -> None:
    """Wait until both servers say so, in what `jq-ctl status` shows."""
    for target in site.targets:
        backend = GrpcBackend(target, timeout=5)
        try:
            async with patience.timeout(60):
                while True:
                    health = await backend.health()
                    [part] = [part for part in health.components if part.name == "redis"]
                    if part.ok is well:
                        break
                    await asyncio.sleep(0.05)
            assert health.ok, "a server without Redis does its work"
        finally:
            await backend.stop()


async def locks_are_seen(url: str) -> None:
    """Wait until there is a lock in that Redis."""
    with redis.Redis.from_url(url) as client:
        async with patience.timeout(60):
            while not any(client.scan_iter(PREFIX + "*")):
                await asyncio.sleep(0.02)


@pytest.mark.timeout(400)
@pytest.mark.req("jq:NFR-009", "jq:FR-015")
async def test_redis_is_flushed_hangs_and_goes_away_under_load(
    site_of: SiteOf, own_redis: OwnRedis, postgres_dsn: str
) -> None:
    server: PrivateRedis = own_redis()
    url = server.url
    site = site_of(2, db_url=postgres_dsn, redis_url=url, **SETTINGS)
    async with under_load(site):
        await locks_are_seen(url)
        with redis.Redis.from_url(url) as client:
            for _ in range(10):
                client.flushall()
                client.script_flush()
                await asyncio.sleep(0.02)  # under load
        await flows(site)
        await redis_is_seen(site, well=True)

        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        await flows(site)
        await redis_is_seen(site, well=False)
        os.kill(server.pid, signal.SIGCONT)
        await redis_is_seen(site, well=True)

        await asyncio.to_thread(server.kill)
        await redis_is_seen(site, well=False)
        await flows(site)
        await asyncio.to_thread(server.restart)
        await redis_is_seen(site, well=True)
        await flows(site)
        await locks_are_seen(url)


async def rate(site: Site, count: int = 1500) -> float:
    """Jobs per second, from the first submit to the last end."""
    began = time.monotonic()
    await flows(site, count)
    return count / (time.monotonic() - began)


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.req("jq:NFR-009")
async def test_it_is_back_to_full_speed_afterwards(
    site_of: SiteOf, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    """Only a ratio of one machine's figures: the best of three before and after."""
    postgres, server = own_postgres(), own_redis()
    site = site_of(2, db_url=postgres.dsn(), redis_url=server.url, **SETTINGS)
    for number in range(2):
        await site.server(number, JQ_WORKER_CONCURRENCY="0")
    for number in range(WORKERS):
        await site.worker(f"w{number}")
    before = max([await rate(site) for _ in range(3)])
    await asyncio.to_thread(postgres.restart, "immediate")
    await flows(site)
    await terminate_random_backends(postgres, 20)
    await asyncio.to_thread(server.restart)
    await redis_is_seen(site, well=True)
    await flows(site)
    after = max([await rate(site) for _ in range(3)])
    print(f"before {before:.0f}/s, after {after:.0f}/s: {after / before:.2f}")
    assert after > 0.7 * before
