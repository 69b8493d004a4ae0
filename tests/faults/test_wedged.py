"""Functions that never return take every slot of a worker: it says so, and makes room."""

from __future__ import annotations

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.faults.processes import Site

SETTINGS = {"JQ_WORKER_CONCURRENCY": "2", "JQ_LOG_LEVEL": "info"}
EXIT_EXHAUSTED = 75


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.req("jq:FR-021", "jq:NFR-007")
async def test_a_worker_without_a_slot_left_ends_for_its_supervisor(site_of):
    site: Site = site_of(**SETTINGS)
    await site.server(JQ_WORKER_CONCURRENCY="0")
    backend = GrpcBackend(site.target, timeout=10)
    await backend.start()
    try:
        wedged = await site.worker("wedged")
        endless = JobSpec(payload=b"{}", type="never-returns", timeout=0.3, max_retries=0)
        healthy = JobSpec(payload=b"{}", type="healthy-thread")
        *stuck, waiting = [
            one.unwrap() for one in await backend.submit([endless, endless, healthy])
        ]
        assert await patience.wait_for(wedged.wait(), 60) == EXIT_EXHAUSTED
        assert [worker.info.id for worker in await backend.list_workers()] == []
        await site.worker("wedged")  # as a supervisor does
        job = await backend.wait(waiting, patience.longest(60))
        assert (job.state, job.attempt) == (State.DONE, 1)
        for job_id in stuck:  # each was told when its time was up, and counts as it always did
            job = await backend.get(job_id)
            assert (job.state, job.reason) == (State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED)
            assert (await backend.history(job_id))[-2].reason is Reason.TIMED_OUT
    finally:
        await backend.stop()
    log = (site.folder / "log").read_text()
    assert "2 of 2 slots are blocked like this" in log
    assert "all 2 slots of worker " in log
    assert "are left behind" not in log
