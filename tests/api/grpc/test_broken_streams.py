"""A worker whose connection is cut again and again: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, JobQuery, JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

JOBS, CONCURRENCY, CUTS = 400, 5, 12


class Hands:
    """A minimal worker runtime: executes in no time, repeats reports until they are answered."""

    def __init__(self, inbox: RecordingInbox) -> None:
        self.inbox = inbox
        self.link: Any = None
        self.held: dict[int, Assignment] = {}
        self.accepted: list[str] = []
        self.most = 0

    async def work(self) -> None:
        while True:
            await self.inbox.until(lambda inbox: inbox.jobs, within=30)
            jobs, self.inbox.jobs = self.inbox.jobs, []
            self.held |= {job.lease: job for job in jobs}
            for job in jobs:
                self.most = max(self.most, len(self.held) + len(self.inbox.jobs))
                await self.finish(job)

    async def finish(self, job: Assignment) -> None:
        report = [Transition.succeeded(job.seq, job.lease, job.id.encode())]
        while True:
            try:
                (accepted,) = await self.link.report(report, freed=1)
            except JobQueueError:
                await asyncio.sleep(0.005)
                continue
            del self.held[job.lease]
            if accepted:
                self.accepted.append(job.id)
            return

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            leases = [*self.held, *(job.lease for job in self.inbox.jobs)]
            try:
                await asyncio.to_thread(self.link.pulse, leases)
            except JobQueueError:
                continue


@pytest.mark.slow
@pytest.mark.req("jq:FR-021", "jq:NFR-006")
async def test_every_job_is_done_and_accepted_once(engine, proxy, through_proxy, worker_info):
    await engine.create_queue(QueueSpec(name="q", retry_profile="producer", max_retries=1000))
    draw = random.Random(7)
    inbox = RecordingInbox()
    hands = Hands(inbox)
    info = worker_info(concurrency=CONCURRENCY, queues=("q",))
    hands.link = await through_proxy.connect(info, inbox)
    hands.link.grant(CONCURRENCY)
    tasks = [asyncio.create_task(hands.work()), asyncio.create_task(hands.beat())]
    ids: list[str] = []
    for n in range(CUTS):
        await asyncio.sleep(draw.uniform(0.0, 0.2))
        specs = [JobSpec(payload=b"x", queue="q", key=f"{n}-{m}") for m in range(JOBS // CUTS)]
        submitting = asyncio.create_task(through_proxy.submit(specs))
        await asyncio.sleep(draw.uniform(0.0, 0.01))
        proxy.cut()
        ids += [result.unwrap() for result in await submitting]
    for job_id in ids:
        job = await engine.wait(job_id, patience.longest(20.0))
        assert job.state is State.DONE, job
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(set(ids)) == len(ids) == (await count(engine))
    # An answer may be lost, so that an accepted report is repeated and refused; never the reverse.
    assert len(set(hands.accepted)) == len(hands.accepted)
    assert hands.most <= CONCURRENCY
    await hands.link.close()


async def count(engine) -> int:
    return len((await engine.list_jobs(JobQuery(queue="q", limit=1000))).jobs)
