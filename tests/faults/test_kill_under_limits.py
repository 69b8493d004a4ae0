"""Limits are kept however often servers and workers are killed; the history judges it."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import QueueUpdate
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.load import settled
from tests.faults.processes import Process, Site
from tests.history.checker import assert_kept

SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
MOST, MOST_OF_A_KEY = 5, 2
KEYS = [None, *(f"tenant:{n}" for n in range(6))]
BATCH = 50
SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.5",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "3",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_SCHEDULER_ASSIGNMENT_TIMEOUT": "15",
    "JQ_LOG_LEVEL": "info",
}
NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}
SIZES = [
    pytest.param(250, 4, marks=pytest.mark.timeout(240)),
    pytest.param(
        100_000,
        40,
        marks=[pytest.mark.timeout(3_600), pytest.mark.nightly("100,000 jobs, five at a time")],
    ),
]


async def submit(backend: GrpcBackend, numbers: range) -> set[str]:
    """Submit until every number was accepted at least once; returns the ids that were told."""
    accepted: set[str] = set()
    left = list(numbers)
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        specs = [
            JobSpec(
                payload=b'{"number": %d}' % n,
                type="half-a-second" if n % 500 == 7 else "short",
                priority=n % 3,
                concurrency_key=KEYS[n % len(KEYS)],
            )
            for n in batch
        ]
        try:
            results = await backend.submit(specs)
        except JobQueueError:  # no server, or the answer was lost: then these jobs run twice
            left = batch + left
            await asyncio.sleep(0.05)
            continue
        accepted |= {r.job_id for r in results if r.status is SubmitStatus.ACCEPTED}
    return accepted


async def limited(backend: GrpcBackend) -> None:
    limits = QueueUpdate(max_running=MOST, key_max_running=MOST_OF_A_KEY, key_weights={"*": 1})
    await backend.update_queue("default", limits)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "rounds"), SIZES)
async def test_limits_hold_while_servers_and_workers_are_killed(
    replicated_site_of: SiteOf, jobs: int, rounds: int
) -> None:
    site: Site = replicated_site_of(**SETTINGS)
    print(f"JQ_TEST_KILL_SEED={SEED}")
    moments = random.Random(SEED)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    names = [f"w{number}" for number in range(4)]

    async def worker(name: str) -> Process:
        return await site.worker(name, JQ_WORKER_CONCURRENCY="4")

    workers = [await worker(name) for name in names]
    backend = GrpcBackend(site.target, timeout=10)
    accepted: set[str] = set()
    share = -(-jobs // rounds)
    try:
        await limited(backend)
        for turn in range(rounds):
            numbers = range(turn * share, min((turn + 1) * share, jobs))
            submitting = asyncio.create_task(submit(backend, numbers))
            await asyncio.sleep(moments.uniform(0.2, 1.0))  # any moment
            place = turn // 2 % 2
            if turn % 2:
                await site.kill(servers[place])
                await asyncio.sleep(moments.uniform(0.0, 0.5))
                servers[place] = await site.server(place, **NO_POOL)
            else:  # its jobs keep their places until the server gives them up
                await site.kill(workers[place])
                names[place] += "x"
                workers[place] = await worker(names[place])
            accepted |= await submitting
    finally:
        await backend.stop()
    await settled(site, 90 + jobs / 50)
    await site.end()
    evidence = await evidence_of(
        site,
        accepted=accepted,
        concurrency=dict.fromkeys(names, 4),
        running={"default": MOST},
        key_running={"default": MOST_OF_A_KEY},
        settled=True,
        dead_letters_allowed=False,
    )
    assert len(accepted) >= jobs
    assert_kept(evidence)
    assert {job.state for job in evidence.jobs.values()} == {State.DONE}
    lost = sum(event.reason is Reason.WORKER_LOST for event in evidence.events)
    print(f"{len(accepted)} jobs, {rounds} kills, {lost} attempts lost with their worker")
