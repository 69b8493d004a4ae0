"""Three jq-servers, a schedule every second, kill -9 of the leader: each tick is one job."""

from __future__ import annotations

import asyncio
import random
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Job, JobQuery, JobSpec
from jobqueue.core.schedule import Schedule, ScheduleSpec
from tests import patience
from tests.faults.processes import Process, Site

SERVERS = 3
SETTINGS = {
    "JQ_SCHEDULER_LEADER_TTL": "2",
    "JQ_WORKER_CONCURRENCY": "0",
    "JQ_LOG_LEVEL": "info",
}
# How long the schedule runs, how often its leader is killed.
LONG = pytest.param(
    "postgres",
    120,
    4,
    marks=[pytest.mark.integration, pytest.mark.nightly("the short form shows it: 2 minutes")],
)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("inp:PROD")
@pytest.mark.parametrize(
    ("any_site_of", "seconds", "kills"),
    [pytest.param("postgres", 20, 2, marks=pytest.mark.integration), LONG],
    indirect=["any_site_of"],
)
async def test_no_tick_is_doubled_and_none_is_missed(any_site_of: Any, seconds: int, kills: int):
    site: Site = any_site_of(servers=SERVERS, **SETTINGS)
    servers = [await site.server(number) for number in range(SERVERS)]
    backend = GrpcBackend(site.target, timeout=20)
    try:
        spec = ScheduleSpec(name="tick", job=JobSpec(payload=b"{}", type="echo"), every=1)
        first = (await backend.create_schedule(spec)).state.next_at
        assert first is not None
        for n in range(kills):
            until = first + (n + random.uniform(0.5, 0.9)) * seconds / kills
            await asyncio.sleep(max(0.0, until - time.time()))
            await kill_leader(site, servers, backend)
        last = first + seconds
        await reached(backend, last)
        found = await backend.pause_schedule("tick")
        jobs = await all_jobs(backend)
    finally:
        await backend.stop()
    assert found.state.last_at is not None
    ticks = sorted(tick_of(job) for job in jobs)
    assert ticks == [first + n for n in range(int(found.state.last_at - first) + 1)]
    assert found.state.skipped == 0
    assert found.state.last_job_id == max(jobs, key=tick_of).id


async def kill_leader(site: Site, servers: list[Process], backend: GrpcBackend) -> None:
    """Kill the server that leads, and start it again."""
    pids = {server.pid: number for number, server in enumerate(servers)}
    async with patience.timeout(30):
        while (pid := await leader(backend)) not in pids:
            await asyncio.sleep(0.05)
    number = pids[pid]
    await site.kill(servers[number])
    servers[number] = await site.server(number)


async def leader(backend: GrpcBackend) -> int:
    """The process id of the server that leads; 0: none at the moment."""
    health = await backend.health()
    (part,) = (one for one in health.components if one.name == "leader")
    found = re.match(r".*:(\d+) since ", part.detail)
    return int(found[1]) if found else 0


async def reached(backend: GrpcBackend, tick: float) -> Schedule:
    async with patience.timeout(60):
        while True:
            try:
                found = await backend.get_schedule("tick")
            except JobQueueError:  # its server was killed
                found = None
            if found is not None and (found.state.last_at or 0.0) >= tick:
                return found
            await asyncio.sleep(0.1)


async def all_jobs(backend: GrpcBackend) -> list[Job]:
    query = JobQuery(limit=100)
    jobs: list[Job] = []
    while True:
        page = await backend.list_jobs(query)
        jobs += page.jobs
        query.page_token = page.next_page_token
        if not page.next_page_token:
            return jobs


def tick_of(job: Job) -> float:
    assert job.key is not None
    text = job.key.removeprefix("cron:tick:").removesuffix("Z")
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
