"""A job that kills every worker that runs it is found, and its neighbours are not harmed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.faults.conftest import evidence_of
from tests.faults.processes import Site
from tests.history.checker import assert_kept

SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",  # without jitter: all meet again
    "JQ_QUEUE_RETRY_BASE": "0.3",
    "JQ_WORKER_CONCURRENCY": "16",
    "JQ_LOG_LEVEL": "info",
}
HEALTHY = 7


async def keep_running(site: Site, worker_id: str) -> None:
    """What a supervisor does: start the worker again at once."""
    while True:
        await (await site.worker(worker_id)).wait()


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.req("jq:FR-020", "jq:FR-034", "jq:NFR-007")
@pytest.mark.parametrize(
    ("workers", "kind", "how"),
    [(1, "async", "exit"), (1, "thread", "segv"), (2, "thread", "exit"), (4, "async", "segv")],
)
async def test_a_poison_job_is_named_and_its_neighbours_are_done(
    site_of, workers: int, kind: str, how: str
):
    site: Site = site_of(**SETTINGS)
    await site.server(JQ_WORKER_CONCURRENCY="0")
    backend = GrpcBackend(site.target, timeout=10)
    await backend.start()
    healthy = JobSpec(payload=b"{}", type=f"healthy-{kind}")
    fatal = JobSpec(payload=b'{"how": "%s"}' % how.encode(), type=f"fatal-{kind}")
    specs = [healthy] * (HEALTHY // 2) + [fatal] + [healthy] * (HEALTHY - HEALTHY // 2)
    accepted = [one.unwrap() for one in await backend.submit(specs)]
    guilty = accepted[HEALTHY // 2]
    supervisors = [asyncio.create_task(keep_running(site, f"w{n}")) for n in range(workers)]
    try:
        async with patience.timeout(120):
            jobs = [await backend.wait(job_id, patience.longest(120)) for job_id in accepted]
    finally:
        for task in supervisors:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await backend.stop()
    await site.end()
    ended = {job.id: (job.state, job.reason) for job in jobs}
    assert ended.pop(guilty) == (State.DEAD_LETTERED, Reason.POISON)
    assert set(ended.values()) == {(State.DONE, Reason.SUCCEEDED)}, site.log_tail()
    assert_kept(await evidence_of(site, accepted=accepted, settled=True))
