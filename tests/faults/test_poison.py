"""A job that kills every worker that runs it is found, and its neighbours are not harmed."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import QueueSpec
from tests import patience
from tests.faults.conftest import evidence_of
from tests.faults.processes import Site
from tests.history.checker import assert_kept

SETTINGS = {
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",  # without jitter: all meet again
    "JQ_QUEUE_RETRY_BASE": "0.1",
    "JQ_WORKER_CONCURRENCY": "16",
    "JQ_LOG_LEVEL": "info",
}
HEALTHY = 4
DEATHS = list(itertools.product(("thread", "async"), ("exit", "segv")))


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.req("jq:FR-020", "jq:FR-034", "jq:NFR-007")
@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_a_poison_job_is_named_and_its_neighbours_are_done(site_of, workers: int):
    """In threads and in tasks, by an exit and by a fault: each in a queue with its own workers."""
    site: Site = site_of(**SETTINGS)
    queues = ["-".join(death) for death in DEATHS]
    names = [f"{queue}-{n}@{queue}" for queue in queues for n in range(workers)]
    await site.supervised_workers(*names)
    await site.server(JQ_WORKER_CONCURRENCY="0")
    backend = GrpcBackend(site.target, timeout=10)
    await backend.start()
    try:
        for queue in queues:
            await backend.create_queue(QueueSpec(name=queue))
        specs = [spec for death in DEATHS for spec in jobs_of(*death)]
        accepted = [one.unwrap() for one in await backend.submit(specs)]
        jobs = [await backend.wait(job_id, patience.longest(120)) for job_id in accepted]
    finally:
        await backend.stop()
        await site.end()
    ended = Counter((job.queue, job.type, job.state, job.reason) for job in jobs)
    wanted: Counter[tuple[str, str, State, Reason | None]] = Counter()
    for kind, how in DEATHS:
        done, poison = (State.DONE, Reason.SUCCEEDED), (State.DEAD_LETTERED, Reason.POISON)
        wanted[f"{kind}-{how}", f"healthy-{kind}", *done] = HEALTHY
        wanted[f"{kind}-{how}", f"fatal-{kind}", *poison] = 1
    assert ended == wanted, site.log_tail()
    assert_kept(await evidence_of(site, accepted=accepted, settled=True))


def jobs_of(kind: str, how: str) -> list[JobSpec]:
    """Healthy jobs with a fatal one in their middle."""
    healthy = JobSpec(payload=b"{}", type=f"healthy-{kind}", queue=f"{kind}-{how}")
    fatal = JobSpec(
        payload=b'{"how": "%s"}' % how.encode(), type=f"fatal-{kind}", queue=f"{kind}-{how}"
    )
    return [healthy] * (HEALTHY // 2) + [fatal] + [healthy] * (HEALTHY - HEALTHY // 2)
