"""Two servers and ten workers on PostgreSQL and Redis, any of them killed at any moment.

The full size of the issue: JQ_TEST_KILL_JOBS=20000 JQ_TEST_KILL_ROUNDS=40.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.load import settled
from tests.faults.processes import Process, Site
from tests.history.checker import assert_kept

ROUNDS = int(os.environ.get("JQ_TEST_KILL_ROUNDS", "8"))
JOBS = int(os.environ.get("JQ_TEST_KILL_JOBS", "1000"))
SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
WORKERS = 10
CONCURRENCY = 4
BATCH = 20

SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "1",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "6",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_SCHEDULER_ASSIGNMENT_TIMEOUT": "15",
    "JQ_LOG_LEVEL": "info",
}
NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}


async def submit(backend: GrpcBackend, numbers: range) -> set[str]:
    """Submit until every number was accepted at least once; returns the ids that were told."""
    accepted: set[str] = set()
    left = list(numbers)
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        specs = [
            JobSpec(
                payload=b'{"number": %d}' % n,
                type="half-a-second" if n % 25 == 0 else "short",
                priority=n % 10,
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


async def busy(fleet: Fleet, backend: GrpcBackend) -> int:
    """The place of a worker that has something to lose."""
    async with patience.timeout(30):
        while True:
            with contextlib.suppress(JobQueueError):
                for worker in await backend.list_workers():
                    if worker.running and worker.info.id in fleet.names:
                        return fleet.names.index(worker.info.id)
            await asyncio.sleep(0.01)


class Fleet:
    """What runs on a site, by its place in the row."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.servers: list[Process] = []
        self.workers: list[Process] = []
        self.names = [f"w{number}" for number in range(WORKERS)]

    async def start(self) -> None:
        self.servers = [await self.site.server(number, **NO_POOL) for number in range(2)]
        self.workers = [await self._worker(name) for name in self.names]

    async def _worker(self, name: str) -> Process:
        return await self.site.worker(name, JQ_WORKER_CONCURRENCY=str(CONCURRENCY))

    async def kill_server(self, number: int, pause: float) -> None:
        await self.site.kill(self.servers[number])
        await asyncio.sleep(pause)
        self.servers[number] = await self.site.server(number, **NO_POOL)

    async def kill_worker(self, number: int, *, same_name: bool) -> None:
        """Its successor takes over at once under the same name, after the timeout under another."""
        await self.site.kill(self.workers[number])
        if not same_name:
            self.names[number] += "x"
        self.workers[number] = await self._worker(self.names[number])


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * ROUNDS + JOBS // 50)
@pytest.mark.req(
    "jq:AC-4", "jq:FR-015", "jq:FR-021", "jq:NFR-005", "jq:NFR-006", "jq:NFR-007", "jq:NFR-008"
)
async def test_every_job_is_done_however_often_servers_and_workers_are_killed(
    replicated_site_of: SiteOf,
) -> None:
    site = replicated_site_of(**SETTINGS)
    print(f"JQ_TEST_KILL_SEED={SEED}")
    moments = random.Random(SEED)
    fleet = Fleet(site)
    await fleet.start()
    backend = GrpcBackend(site.target, timeout=10)
    accepted: set[str] = set()
    share = -(-JOBS // ROUNDS)
    try:
        for turn in range(ROUNDS):
            numbers = range(turn * share, min((turn + 1) * share, JOBS))
            submitting = asyncio.create_task(submit(backend, numbers))
            if turn % 2:
                await fleet.kill_worker(await busy(fleet, backend), same_name=turn % 4 == 1)
            else:
                await asyncio.sleep(moments.uniform(0.05, 0.5))  # any moment
                await fleet.kill_server(turn // 2 % 2, moments.uniform(0.0, 0.5))
            accepted |= await submitting
    finally:
        await backend.stop()
    await settled(site, 60 + JOBS / 50)
    await site.end()

    assert len(accepted) >= JOBS
    evidence = await evidence_of(
        site,
        accepted=accepted,
        concurrency=dict.fromkeys(fleet.names, CONCURRENCY),
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)  # among others: one result for each job, no two live leases
    assert {job.state for job in evidence.jobs.values()} == {State.DONE}
    assert accepted <= {run.job_id for run in site.runs()}, "the outside ledger shows that each ran"
    lost = sum(event.reason is Reason.WORKER_LOST for event in evidence.events)
    print(f"{len(accepted)} jobs, {ROUNDS} kills, {lost} attempts lost with their worker")
    assert lost, "no kill hit a job: the test showed nothing"
