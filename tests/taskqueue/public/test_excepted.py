"""The answers in which deployments differ, for each of them. The table is in ``exceptions.py``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import grpc
import pytest

from jobqueue.core.errors import NotFound
from jobqueue.taskqueue import JobSpec, JobStatus, owner_index
from jobqueue.taskqueue.components.protocols import Coordination
from jobqueue.taskqueue.designs.wiring import Links
from jobqueue.taskqueue.engine_job import QUEUE
from tests import patience
from tests.api.public.hand import Hand
from tests.taskqueue.protocols.faulty import Failpoints, fails
from tests.taskqueue.public.conftest import Deploy
from tests.taskqueue.public.exceptions import (
    A_DEAD_WORKERS_JOB,
    CAPACITY,
    LIFETIME_OF_KEYS,
    MESSAGE_TOO_LARGE,
    SCOPE_OF_LIST_JOBS,
    excepted,
)
from tests.taskqueue.public.public import PATIENCE, VERY_LONG_MS, Public, job_of, refused

# -- a dead worker's job ---------------------------------------------------------------------------


class Cut(Links):
    """Between workers and their coordinator, until it is cut."""

    def __init__(self) -> None:
        self._points = Failpoints()

    def coordination(self, coordination: Coordination) -> Coordination:
        return self._points.around(coordination, "coordination")

    def cut(self) -> None:
        self._points.choose = lambda call: fails()


@pytest.mark.req("tq:NFR-1", "tq:NFR-5", "tq:LIVENESS", "tq:LOCK-40")
async def test_a_dead_workers_job(
    deploy: Deploy, deployment: str, caplog: pytest.LogCaptureFixture
) -> None:
    if excepted(A_DEAD_WORKERS_JOB, deployment):
        await _stays_running_and_is_told(deploy, caplog)
    else:
        await _is_taken_away_and_queued_again(deploy)


async def _stays_running_and_is_told(deploy: Deploy, caplog: pytest.LogCaptureFixture) -> None:
    line = Cut()
    silent = f"{patience.stretched(600):.0f}"
    tq = await deploy(
        environ={"HEARTBEAT_INTERVAL_MS": "100", "WORKER_TIMEOUT_MS": silent}, links=line
    )
    submitted = await tq.client.submit_job(job_type="any", work_duration_ms=VERY_LONG_MS)
    job_id = submitted.job_id
    await tq.until(job_id, JobStatus.RUNNING)
    caplog.set_level(logging.WARNING, "jobqueue.services")
    line.cut()

    def told() -> bool:
        return any(job_id in getattr(line, "job_ids", ()) for line in caplog.records)

    async with patience.timeout(PATIENCE):
        while not told():
            await asyncio.sleep(0.01)
    assert (await tq.client.get_job_status(job_id)).status is JobStatus.RUNNING
    assert await tq.client.get_job_result(job_id) is None


async def _is_taken_away_and_queued_again(deploy: Deploy) -> None:
    settings = {"worker.heartbeat_interval": "0.1", "worker.heartbeat_timeout": "1.5"}
    tq = await deploy(settings=settings, workers=False)
    job_id = (await tq.client.submit_job(job_type="any")).job_id
    assert tq.running.dispatch is not None
    worker = await Hand.connect(tq.running.dispatch, queues=(QUEUE,))
    try:
        await worker.begin()
        await tq.until(job_id, JobStatus.QUEUED)  # it sends no heartbeats
    finally:
        await worker.link.close()
    assert (await tq.client.get_job_status(job_id)).started_at_ms == 0
    assert await tq.client.get_job_result(job_id) is None


# -- the scope of ListJobs in B --------------------------------------------------------------------


@pytest.mark.req("tq:NFR-1", "tq:LIST", "tq:LOCK-28", "tq:INGRESS")
async def test_the_scope_of_list_jobs(tq: Public, deployment: str) -> None:
    await tq.hold()
    submitted = {(await tq.client.submit_job(job_type="any")).job_id for _ in range(12)}
    lists = [{job.job_id for job in jobs if job.job_type == "any"} for jobs in await tq.lists()]
    if excepted(SCOPE_OF_LIST_JOBS, deployment):
        nodes = len(tq.running.targets)
        assert lists == [
            {job_id for job_id in submitted if owner_index(job_id, nodes) == node}
            for node in range(nodes)
        ]
        assert [len(jobs) for jobs in lists] == [2] * nodes  # round-robin
    else:
        assert lists == [submitted]


# -- the lifetime of dedup keys --------------------------------------------------------------------


@pytest.mark.req("tq:NFR-1", "tq:DEDUP", "tq:LOCK-25")
async def test_the_lifetime_of_dedup_keys(deploy: Deploy, deployment: str) -> None:
    tq = await deploy(environ={"MAX_DEDUP_KEYS": "2"}, settings={"queue.key_ttl": "3600"})
    await tq.hold()
    async with tq.with_one_list() as one:  # each node counts its own
        spec = JobSpec("any")
        keys = ["order-1", "order-2", "order-3"]
        first = [await one.client.submit_job(spec, client_request_id=key) for key in keys]
        again = await one.client.submit_job(spec, client_request_id=keys[0])
        if excepted(LIFETIME_OF_KEYS, deployment):
            assert again.job_id not in {job.job_id for job in first}  # the oldest was forgotten
            other = replace(spec, job_type="other")
            await one.client.submit_job(other, client_request_id=keys[1])  # and now the second
        else:
            assert again.job_id == first[0].job_id
        assert (await one.client.get_job_status(first[0].job_id)).status is JobStatus.QUEUED


@pytest.mark.req("tq:DEDUP")
async def test_a_store_forgets_a_key_after_its_time(deploy: Deploy, deployment: str) -> None:
    tq = await deploy(settings={"queue.key_ttl": "0.5"})
    await tq.hold()
    first = await tq.client.submit_job(job_type="any", client_request_id="order")
    await asyncio.sleep(0.6)  # longer than the key is remembered
    again = await tq.client.submit_job(job_type="any", client_request_id="order")
    # The designs count keys, not seconds.
    assert (again.job_id == first.job_id) == excepted(LIFETIME_OF_KEYS, deployment)


# -- capacity --------------------------------------------------------------------------------------


@pytest.mark.req("tq:NFR-1", "tq:CODES")
async def test_a_full_queue_takes_no_more_and_says_so(deploy: Deploy) -> None:
    """The bound has two names, and one answer."""
    tq = await deploy(environ={"MAX_QUEUED_JOBS": "8"}, settings={"queue.capacity": "8"})
    await tq.hold()
    async with tq.with_one_list() as one:  # each node counts its own
        (before,) = await one.lists()
        waiting = [(await one.client.submit_job(job_type="any")).job_id for _ in range(8)]
        for _ in range(2):
            code, text = await refused(one.stub().SubmitJob(job_of()))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "full" in text
        (after,) = await one.lists()
        assert {job.job_id for job in after} - {job.job_id for job in before} == set(waiting)
        await one.client.cancel_job(waiting[0])
        await one.client.submit_job(job_type="any")  # there is room again


@pytest.mark.req("tq:NFR-1")
async def test_capacity(deploy: Deploy, deployment: str) -> None:
    tq = await deploy(environ={"MAX_JOBS": "4"})
    async with tq.with_one_list() as one:  # each node counts its own
        ended = [(await one.client.submit_job(job_type="any")).job_id for _ in range(4)]
        for job_id in ended:
            await one.end(job_id)
        newest = (await one.client.submit_job(job_type="any")).job_id
        await one.end(newest)
        (kept,) = await one.lists()
        if excepted(CAPACITY, deployment):
            # What ended first is forgotten first; a status is gone as if it had never been.
            assert len(kept) == 4
            (forgotten,) = set(ended) - {job.job_id for job in kept}
            for call in (one.client.get_job_status, one.client.get_job_result):
                with pytest.raises(NotFound):
                    await call(forgotten)
        else:
            assert {job.job_id for job in kept} == {*ended, newest}


# -- a message that is too large -------------------------------------------------------------------


@pytest.mark.req("tq:NFR-1", "tq:CODES")
async def test_a_message_that_is_too_large_has_no_effect(deploy: Deploy, deployment: str) -> None:
    tq = await deploy()
    code, text = await refused(tq.stub().SubmitJob(job_of(labels={"x": "y" * 5 * 2**20})))
    if excepted(MESSAGE_TOO_LARGE, deployment):
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.endswith("at most 4194304 are allowed")
    else:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in text
    assert await tq.jobs() == []
