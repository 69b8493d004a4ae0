"""What a worker holds when servers and workers come and go, on two servers with one store."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec, Transition, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from tests import patience
from tests.api.public.hand import Hand
from tests.faults.conftest import SiteOf, evidence_of
from tests.faults.load import Load, flows, settled
from tests.faults.processes import Site
from tests.history.checker import Run, assert_kept

SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.3",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "3",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "info",
}
NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}
HANGING = JobSpec(payload=b'{"number": 1}', type="first-attempt-hangs", priority=9)

pytestmark = [pytest.mark.faults, pytest.mark.slow]


async def submit(backend: GrpcBackend, specs: Sequence[JobSpec]) -> list[str]:
    return [result.unwrap() for result in await backend.submit(specs)]


async def until(backend: GrpcBackend, job_ids: Sequence[str], state: State) -> None:
    async with patience.timeout(50):
        for job_id in job_ids:
            while (await backend.get(job_id)).state is not state:
                await asyncio.sleep(0.02)


@pytest.mark.req("jq:NFR-008", "jq:NFR-006")
async def test_a_worker_whose_server_is_killed_keeps_what_it_holds(
    replicated_site_of: SiteOf,
) -> None:
    """It goes on with the other server, and the same attempts end there."""
    site = replicated_site_of(**SETTINGS)
    first = await site.server(0, **NO_POOL)  # alone, so that the worker is connected here
    await site.worker("w", JQ_WORKER_CONCURRENCY="4")
    backend = GrpcBackend(site.target, timeout=10)
    try:
        jobs = await submit(backend, [HANGING] * 4)
        await until(backend, jobs, State.RUNNING)
        await site.server(1, **NO_POOL)
        await site.kill(first)
        for job_id in jobs:
            job = await backend.wait(job_id, patience.longest(30))
            assert (job.state, job.attempt, job.worker_id) == (State.DONE, 1, "w")
            events = await backend.history(job_id)
            assert [event.to_state.name for event in events] == [
                "PENDING", "ASSIGNED", "RUNNING", "DONE",
            ]  # fmt: skip
        [more] = await submit(backend, [JobSpec(payload=b'{"number": 1}', type="short")])
        assert (await backend.wait(more, patience.longest(20))).state is State.DONE
    finally:
        await backend.stop()
    assert sorted(run.job_id for run in site.runs()) == sorted([*jobs, more])


async def beat(hand: Hand, lease: int) -> None:
    """As a worker's heartbeats do."""
    while True:
        await asyncio.to_thread(hand.link.pulse, [lease])
        await asyncio.sleep(0.3)


@pytest.mark.req("jq:FR-020", "jq:NFR-006")
async def test_what_a_silent_worker_reports_afterwards_is_refused_and_changes_nothing(
    replicated_site_of: SiteOf,
) -> None:
    """Through whichever server it comes. The worker here does not pulse: it is as good as stopped.

    (That a real one behaves after SIGSTOP: test_kill_worker.py.)
    """
    site = replicated_site_of(**(SETTINGS | {"JQ_WORKER_HEARTBEAT_TIMEOUT": "1.5"}))
    for number in range(2):
        await site.server(number, **NO_POOL)
    backends = [GrpcBackend(target, timeout=10) for target in site.targets]
    try:
        job_id, *_ = await submit(backends[0], [JobSpec(payload=b"1", type="t")])
        sleeper = await Hand.connect(backends[0], worker_id="sleeper", slots=1)
        lost = await sleeper.take()
        await sleeper.start(lost)
        async with patience.timeout(60):
            while sleeper.worker_id in {
                worker.info.id
                for worker in await backends[1].list_workers()
                if worker.status is not WorkerStatus.OFFLINE
            }:
                await asyncio.sleep(0.02)
        successor = await Hand.connect(backends[1], worker_id="successor", slots=1)
        again = await successor.take()
        assert (again.id, again.attempt) == (job_id, 2)
        beating = asyncio.create_task(beat(successor, again.lease))
        for ended in (False, True):
            if ended:
                await successor.succeed(again, b'"second"')
            before = await backends[0].get(job_id)
            history = await backends[0].history(job_id)
            for late in (
                Transition.succeeded(lost.seq, lost.lease, b'"first"', 1.0),
                Transition.failed(lost.seq, lost.lease, "late", ran_for=1.0),
                Transition.started(lost.seq, lost.lease),
            ):
                assert await successor.link.report([late]) == [False]
                assert await backends[0].get(job_id) == before
                assert await backends[1].history(job_id) == history
        beating.cancel()
        await asyncio.wait([beating])
        assert before.result == b'"second"'
        assert [event.reason for event in history].count(Reason.WORKER_LOST) == 1
    finally:
        for backend in backends:
            await backend.stop()


@pytest.mark.timeout(300)
@pytest.mark.req("jq:NFR-014", "jq:NFR-015", "jq:NFR-005", "jq:NFR-008")
async def test_an_orderly_stop_of_a_server_and_of_a_worker_under_load_loses_nothing(
    replicated_site_of: SiteOf,
) -> None:
    site: Site = replicated_site_of(**SETTINGS)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    workers = [await site.worker(f"w{n}", JQ_WORKER_CONCURRENCY="4") for n in range(3)]
    backend = GrpcBackend(site.targets[0], timeout=10)
    load = Load(site)
    load.start()
    try:
        async with patience.timeout(30):
            while len(await backend.list_workers()) < len(workers):
                await asyncio.sleep(0.05)
        long = await submit(backend, [HANGING] * 6)
        await until(backend, long[-1:], State.RUNNING)
        busy = (await backend.get(long[-1])).worker_id
        assert busy is not None
        leaving = workers[int(busy.removeprefix("w"))]
        servers[1].send_signal(signal.SIGTERM)
        leaving.send_signal(signal.SIGTERM)
        async with patience.timeout(30):
            assert await servers[1].wait() == 0, site.log_tail()  # jq:NFR-014
        async with patience.timeout(60):
            assert await leaving.wait() == 0, site.log_tail()  # jq:NFR-015
        assert busy not in {worker.info.id for worker in await backend.list_workers()}
        await until(backend, long, State.DONE)
    finally:
        await load.stop()
        await backend.stop()
    await settled(site, 120)
    await site.end()
    evidence = await evidence_of(
        site, accepted={*load.accepted, *long}, settled=True, dead_letters_allowed=False
    )
    assert_kept(evidence)
    assert len(load.accepted) > 50
    failed = [e for e in evidence.events if e.to_state is State.FAILED]
    assert {e.reason for e in failed} <= {Reason.HANDED_BACK}  # assigned, not begun
    runs = site.runs()
    assert [runs.count(Run(job_id, 1)) for job_id in long] == [1] * len(long)
    assert len(runs) == len({run.job_id for run in runs}), "a job was run twice"


@pytest.mark.timeout(300)
@pytest.mark.req("jq:NFR-005", "jq:NFR-008")
async def test_both_servers_killed_at_once_under_load(replicated_site_of: SiteOf) -> None:
    site: Site = replicated_site_of(**SETTINGS)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    for n in range(3):
        await site.worker(f"w{n}", JQ_WORKER_CONCURRENCY="4")
    load = Load(site)
    load.start()
    try:
        await flows(site)
        for server in servers:
            server.kill()
        await asyncio.gather(*(server.wait() for server in servers))
        for number in range(2):
            await site.server(number, **NO_POOL)
        await flows(site)
    finally:
        await load.stop()
    await settled(site, 120)
    await site.end()
    evidence = await evidence_of(
        site,
        accepted=load.accepted,
        told_done=load.told_done,
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)
    assert {evidence.jobs[job_id].state for job_id in load.accepted} == {State.DONE}
    assert load.accepted <= {run.job_id for run in site.runs()}
