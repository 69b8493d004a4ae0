"""Two jq-servers on one store, jq-workers that know both: kill -9 in turn, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.job import JobSpec, WorkerStatus
from jobqueue.core.lifecycle import State
from tests import patience
from tests.faults.conftest import evidence_of
from tests.faults.load import Load, settled
from tests.faults.processes import Site
from tests.history.checker import Run, assert_kept

ROUNDS = int(os.environ.get("JQ_TEST_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
WORKERS = 3

SETTINGS = {
    "JQ_QUEUE_MAX_RETRIES": "1000",
    "JQ_QUEUE_POISON_AFTER": "0",
    "JQ_QUEUE_RETRY_PROFILE": "scheduler",
    "JQ_WORKER_CONCURRENCY": "4",
    "JQ_WORKER_HEARTBEAT_INTERVAL": "0.5",
    "JQ_WORKER_HEARTBEAT_TIMEOUT": "5",
    "JQ_SCHEDULER_LEADER_TTL": "1",
    "JQ_LOG_LEVEL": "info",
}
NO_POOL = {"JQ_WORKER_CONCURRENCY": "0"}


def on_postgres(why: str, *more: object) -> Any:
    """On PostgreSQL in the night only."""
    return pytest.param(
        "postgres", *more, marks=[pytest.mark.integration, pytest.mark.nightly(why)]
    )


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(90 + 15 * ROUNDS)
@pytest.mark.req("jq:NFR-005", "jq:NFR-006", "jq:NFR-008", "jq:FR-021")
@pytest.mark.parametrize(
    "any_site_of",
    ["sqlite", on_postgres("test_kill_fleet.py kills these two servers in turn: 10 s")],
    indirect=True,
)
async def test_nothing_is_lost_when_servers_are_killed_in_turn(any_site_of):
    site: Site = any_site_of(servers=2, **SETTINGS)
    moments = random.Random(SEED)
    print(f"JQ_TEST_KILL_SEED={SEED}")
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    workers = [await site.worker(f"w{number}") for number in range(WORKERS)]
    load = Load(site)
    load.start()
    try:
        for turn in range(ROUNDS):
            await asyncio.sleep(moments.uniform(0.5, 1.5))
            number = turn % 2
            await site.kill(servers[number])
            await asyncio.sleep(moments.uniform(0.0, 1.0))
            servers[number] = await site.server(number, **NO_POOL)
    finally:
        await load.stop()
    await settled(site, 60)
    for process in (*workers, *servers):
        process.send_signal(signal.SIGTERM)
        async with patience.timeout(30):
            assert await process.wait() == 0, site.log_tail()

    assert len(load.accepted) > 100
    assert load.told_done
    evidence = await evidence_of(
        site,
        accepted=load.accepted,
        told_done=load.told_done,
        concurrency={f"w{number}": 4 for number in range(WORKERS)},
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)
    assert {evidence.jobs[job_id].state for job_id in load.accepted} == {State.DONE}
    assert load.accepted <= {run.job_id for run in site.runs()}
    assert not any(
        e.from_state is State.RUNNING and e.to_state is State.FAILED for e in evidence.events
    ), "a worker lost a job that it ran, although it lived and a server was there"


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.req("jq:NFR-007", "jq:NFR-008")
@pytest.mark.parametrize(
    ("any_site_of", "away"),
    [
        ("sqlite", 0.5),
        ("sqlite", 3.5),
        on_postgres("the worker is the same, and the case `longer` runs here: 8 s", 0.5),
        pytest.param("postgres", 3.5, marks=pytest.mark.integration),
    ],
    indirect=["any_site_of"],
    ids=["sqlite-shorter", "sqlite-longer", "postgres-shorter", "postgres-longer"],
)
async def test_a_running_job_when_both_servers_are_away_for_less_or_more_than_the_timeout(
    any_site_of, away: float
):
    """Its worker keeps it and reports when a server is back: nobody was judged meanwhile."""
    settings = SETTINGS | {"JQ_WORKER_HEARTBEAT_TIMEOUT": "2.5"}
    site: Site = any_site_of(servers=2, **settings)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    await site.worker("w")
    backend = GrpcBackend(site.target, timeout=20)
    try:
        spec = JobSpec(payload=b'{"number": 1}', type="first-attempt-hangs")
        job_id = (await backend.submit([spec]))[0].unwrap()
        async with patience.timeout(20):
            while (await backend.get(job_id)).state is not State.RUNNING:
                await asyncio.sleep(0.02)
        for server in servers:
            await site.kill(server)
        await asyncio.sleep(away)
        for number in range(2):
            await site.server(number, **NO_POOL)
        async with patience.timeout(30):
            job = await backend.wait(job_id, patience.longest(30))
        assert (job.state, job.attempt, job.worker_id) == (State.DONE, 1, "w")
        assert [w.status for w in await backend.list_workers()] == [WorkerStatus.ONLINE]
    finally:
        await backend.stop()
    assert site.runs() == [Run(job_id, 1)]


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.req("jq:NFR-006", "jq:NFR-008")
async def test_a_server_that_stands_still_for_longer_than_any_timeout_does_no_harm_when_it_wakes(
    any_site_of,
):
    """It led, it had workers, it knew free slots: all of that is another server's by then."""
    settings = SETTINGS | {"JQ_WORKER_HEARTBEAT_TIMEOUT": "1.5"}
    site: Site = any_site_of(servers=2, **settings)
    servers = [await site.server(number, **NO_POOL) for number in range(2)]
    for number in range(WORKERS):
        await site.worker(f"w{number}")
    load = Load(site)
    load.start()
    try:
        await asyncio.sleep(1.5)
        servers[0].send_signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        servers[0].send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
        async with patience.timeout(60):
            while len(load.accepted) <= 100:
                await asyncio.sleep(0.1)
    finally:
        await load.stop()
    await settled(site, 60)
    await site.end()
    evidence = await evidence_of(
        site,
        accepted=load.accepted,
        told_done=load.told_done,
        settled=True,
        dead_letters_allowed=False,
    )
    assert_kept(evidence)
    assert len(load.accepted) > 100
    assert {evidence.jobs[job_id].state for job_id in load.accepted} == {State.DONE}


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.req("jq:FR-023", "jq:FR-024", "jq:NFR-008")
async def test_shutdown_of_a_worker_through_the_server_that_it_is_not_connected_to(any_site_of):
    """The words of one server are heard by the other: the worker ends by itself, with status 0."""
    site: Site = any_site_of(servers=2, **(SETTINGS | {"JQ_WORKER_HEARTBEAT_INTERVAL": "4"}))
    for number in range(2):
        await site.server(number, **NO_POOL)
    for worker_id in ("a", "b", "c", "d"):  # spread over both
        worker = await site.worker(worker_id)
        for target in site.targets:
            operator = GrpcBackend(target, timeout=10)
            try:
                async with patience.timeout(20):
                    while worker_id not in {w.info.id for w in await operator.list_workers()}:
                        await asyncio.sleep(0.05)
                if target == site.targets[0]:
                    await operator.drain_worker(worker_id)
                else:
                    await operator.shutdown_worker(worker_id)
            finally:
                await operator.stop()
        async with patience.timeout(10):
            assert await worker.wait() == 0, site.log_tail()
