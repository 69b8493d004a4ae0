"""Old workers know one task, new ones two; workers are exchanged one by one while jobs flow."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import Event, Job, JobSpec, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.processes import Process, Site
from tests.records import made

SETTINGS = {
    # Without the safety net: a slot that is left idle stays so, and the test sees it.
    "JQ_SCHEDULER_INTERVAL": "60",
    "JQ_WORKER_CONCURRENCY": "2",
    "JQ_LOG_LEVEL": "info",
}
OLD, NEW = frozenset("a"), frozenset("ab")
WORKERS = 3
BURST = 40


class Deploy:
    """The workers, and the jobs that were submitted."""

    def __init__(self, site: Site, backend: GrpcBackend) -> None:
        self.site = site
        self.backend = backend
        self.knows: dict[str, frozenset[str]] = {}
        self.submitted: list[str] = []
        self._rng = random.Random(12)

    async def start(self, worker_id: str, types: frozenset[str]) -> Process:
        """Start a worker and wait until it is connected."""
        self.knows[worker_id] = types
        process = await self.site.start(
            "jobqueue.cli.worker",
            ("--app", "rolling_app:app"),
            {
                "JQ_WORKER_ID": worker_id,
                "JQ_WORKER_SERVER": self.site.target,
                "JQ_WORKER_METRICS_PORT": "0",
                "KNOWS": ",".join(sorted(types)),
            },
        )
        async with patience.timeout(60):
            while worker_id not in await self.online():
                assert process.returncode is None, self.site.log_tail()
                await asyncio.sleep(0.05)
        return process

    async def online(self) -> set[str]:
        workers = await self.backend.list_workers()
        return {w.info.id for w in workers if w.status is WorkerStatus.ONLINE}

    async def burst(self) -> list[str]:
        """Jobs of both types, in small groups, one after the other."""
        ids: list[str] = []
        while len(ids) < BURST:
            group = self._rng.choice([1, 1, 2, 5])
            specs = [
                JobSpec(payload=b'{"number": %d}' % n, type=self._rng.choice("ab"))
                for n in range(group)
            ]
            ids += [result.unwrap() for result in await self.backend.submit(specs)]
            await asyncio.sleep(0)
        self.submitted += ids
        return ids

    async def settle(self, ids: Sequence[str]) -> list[Job]:
        """Wait for the end of jobs that somebody knows."""
        async with patience.timeout(50):
            jobs = [await self.backend.wait(job_id, patience.longest(50)) for job_id in ids]
        assert {job.state for job in jobs} == {State.DONE}, self.site.log_tail()
        return jobs


@dataclass(frozen=True)
class Wait:
    """A job from its submit to its first assignment."""

    job: Job
    since: float
    until: float
    worker_id: str


def waits(jobs: Mapping[str, Job], events: Sequence[Event]) -> list[Wait]:
    since: dict[str, float] = {}
    found: dict[str, Wait] = {}
    for event in sorted(events, key=lambda event: event.version):
        if event.version == 1:
            since[event.job_id] = event.at
        elif event.to_state is State.ASSIGNED and event.job_id not in found:
            assert event.worker_id is not None
            job = jobs[event.job_id]
            found[job.id] = Wait(job, since[job.id], event.at, event.worker_id)
    return list(found.values())


def overtaken(found: Sequence[Wait], knows: dict[str, frozenset[str]]) -> list[tuple[Wait, Wait]]:
    """Jobs that went on waiting while slots that know their type were given to younger jobs.

    A claim that is under way when a job is submitted may not see it, and may see the next one. So
    one overtaking is allowed, and with it those by jobs that were there by then: not by a job that
    was submitted after it.
    """
    pairs = [
        (older, taken)
        for taken in found
        for older in found
        if older.job.seq < taken.job.seq
        and older.job.type in knows[taken.worker_id]
        and older.since < taken.since
        and older.until > taken.until
    ]
    first: dict[str, float] = {}
    for older, taken in pairs:
        first[older.job.id] = min(taken.until, first.get(older.job.id, taken.until))
    return [(older, taken) for older, taken in pairs if taken.since > first[older.job.id]]


@pytest.mark.faults
@pytest.mark.slow
async def test_no_job_fails_or_is_passed_over_in_a_rolling_deploy(any_site_of: SiteOf):
    site = any_site_of(**SETTINGS)
    await site.server(JQ_WORKER_CONCURRENCY="0")
    backend = GrpcBackend(site.target, timeout=10)
    await backend.start()
    deploy = Deploy(site, backend)
    try:
        old = [await deploy.start(f"old-{n}", OLD) for n in range(WORKERS)]
        first = [await backend.get(job_id) for job_id in await deploy.burst()]
        await deploy.settle([job.id for job in first if job.type == "a"])
        strangers = [job.id for job in first if job.type == "b"]
        for job_id in strangers:
            job = await backend.get(job_id)
            assert (job.state, job.attempt) == (State.PENDING, 0)
            assert job.hint == "no connected worker takes type 'b' from queue 'default'"
        for n, leaving in enumerate(old):
            await deploy.start(f"new-{n}", NEW)
            flowing = await deploy.burst()
            leaving.send_signal(signal.SIGTERM)
            flowing += await deploy.burst()
            await deploy.settle(flowing)
            await deploy.settle(strangers)
            assert await leaving.wait() == 0
        assert await deploy.online() == {f"new-{n}" for n in range(WORKERS)}
        await deploy.settle(await deploy.burst())
    finally:
        await backend.stop()
    await site.end()
    evidence = await evidence_of(site, accepted=deploy.submitted, settled=True)
    assert set(evidence.jobs) == set(deploy.submitted)
    assert {job.state for job in evidence.jobs.values()} == {State.DONE}
    assert {job.retry_count for job in evidence.jobs.values()} == {0}
    failures = {event.reason for event in evidence.events if event.to_state is State.FAILED}
    assert failures <= {Reason.HANDED_BACK}
    for event in evidence.events:
        if event.to_state is State.ASSIGNED and event.worker_id is not None:
            assert evidence.jobs[event.job_id].type in deploy.knows[event.worker_id]
    assert overtaken(waits(evidence.jobs, evidence.events), deploy.knows) == []


def test_a_job_that_is_passed_over_is_found() -> None:
    def wait(seq: int, type: str, since: float, until: float, worker_id: str) -> Wait:
        job = made(
            Job,
            id=str(seq), seq=seq, queue="q", type=type, payload=b"x", priority=0, max_retries=0,
            state=State.DONE, version=4, attempt=1, retry_count=0, created_at=0, updated_at=0,
        )  # fmt: skip
        return Wait(job, since, until, worker_id)

    knows = {"old": OLD, "new": NEW}
    first, second = wait(1, "b", 1.0, 9.0, "new"), wait(2, "a", 2.0, 3.0, "old")
    assert overtaken([first, second], knows) == [], "the old one does not know it"
    third = wait(3, "a", 2.5, 4.0, "new")
    assert overtaken([first, second, third], knows) == [], "its claim may have been under way"
    fourth = wait(4, "a", 4.5, 5.0, "new")
    assert overtaken([first, second, third, fourth], knows) == [(first, fourth)]
