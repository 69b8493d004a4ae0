"""A server and its workers are stopped at the same time: what the workers finish counts."""

from __future__ import annotations

import asyncio
import signal

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import State
from tests import patience
from tests.faults.conftest import SiteOf, evidence_of

JOBS = 8


@pytest.mark.faults
@pytest.mark.req("jq:NFR-014")
async def test_work_that_a_draining_worker_finishes_is_not_done_again(any_site_of: SiteOf):
    site = any_site_of(JQ_LOG_LEVEL="info", JQ_SERVER_SHUTDOWN_TIMEOUT=str(patience.longest(30)))
    server = await site.server(JQ_WORKER_CONCURRENCY="0")
    worker = await site.worker("w", JQ_WORKER_CONCURRENCY=str(JOBS))
    backend = GrpcBackend(site.target, timeout=10)
    specs = [JobSpec(payload=b'{"number": %d}' % n, type="until-released") for n in range(JOBS)]
    accepted = [result.unwrap() for result in await backend.submit(specs)]
    await backend.stop()
    async with patience.timeout(60):
        while len(site.runs()) < JOBS:
            await asyncio.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
        while "draining" not in site.log_tail():
            await asyncio.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        while "waiting up to" not in site.log_tail() and server.returncode is None:
            await asyncio.sleep(0.02)
        (site.folder / "released").touch()
        assert (await worker.wait(), await server.wait()) == (0, 0), site.log_tail()
    evidence = await evidence_of(site, accepted=accepted)
    assert {job.state for job in evidence.jobs.values()} == {State.DONE}, site.log_tail()
    assert {job.attempt for job in evidence.jobs.values()} == {1}
