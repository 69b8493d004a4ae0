"""Workers that die or stall under a job: it runs again elsewhere, and is accepted once."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import Job, JobSpec, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.faults.conftest import evidence_of
from tests.faults.processes import Site
from tests.history.checker import Run, assert_kept

SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.3",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "1.5",
    "JQ_WORKER_CONCURRENCY": "2",
    "JQ_LOG_LEVEL": "info",
}


async def until_running(backend: GrpcBackend, job_id: str) -> Job:
    async with patience.timeout(20):
        while (job := await backend.get(job_id)).state is not State.RUNNING:
            await asyncio.sleep(0.02)
    return job


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.req("jq:FR-020", "jq:NFR-007", "jq:AC-2", "jq:NFR-006")
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
async def test_a_lost_workers_job_is_run_again_and_accepted_once(
    any_site_of, fault: signal.Signals
):
    site: Site = any_site_of(**SETTINGS)
    await site.server(JQ_WORKER_CONCURRENCY="0")
    backend = GrpcBackend(site.target, timeout=10)
    await backend.start()
    try:
        victim = await site.worker("victim")
        spec = JobSpec(payload=b'{"number": 1}', type="first-attempt-hangs")
        job_id = (await backend.submit([spec]))[0].unwrap()
        job = await until_running(backend, job_id)
        began = time.monotonic()
        assert job.worker_id == "victim"
        victim.send_signal(fault)
        await site.worker("successor")
        async with patience.timeout(30):
            job = await backend.wait(job_id, patience.longest(30))
        assert (job.state, job.attempt, job.worker_id) == (State.DONE, 2, "successor")
        assert job.result == b"2"
        statuses = {w.info.id: w.status for w in await backend.list_workers()}
        assert statuses.get("victim", WorkerStatus.OFFLINE) is WorkerStatus.OFFLINE
        reasons = [event.reason for event in await backend.history(job_id)]
        assert Reason.WORKER_LOST in reasons
        if fault is signal.SIGSTOP:
            victim.send_signal(signal.SIGCONT)  # it wakes and wants to report its old attempt
            async with patience.timeout(15):
                while not any(
                    w.info.id == "victim" and w.status is WorkerStatus.ONLINE
                    for w in await backend.list_workers()
                ):
                    await asyncio.sleep(0.05)
            # Longer than the handler slept: its late result is out.
            await asyncio.sleep(max(0.5, began + 3.5 - time.monotonic()))
            job = await backend.get(job_id)
            assert (job.state, job.attempt, job.result) == (State.DONE, 2, b"2")
    finally:
        await backend.stop()
    await site.end()
    evidence = await evidence_of(site, accepted=[job_id], settled=True, dead_letters_allowed=False)
    assert_kept(evidence)
    assert site.runs() == [Run(job_id, 1), Run(job_id, 2)]
