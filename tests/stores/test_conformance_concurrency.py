"""Many callers at once: nothing is handed out twice, nothing is half written."""

from __future__ import annotations

import asyncio
import random

import pytest

from jobqueue.core.job import Assignment, SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from tests import patience
from tests.stores.driver import Driver, new, spec

P, A, R, D, F, X = State


@pytest.mark.req("inp:QUEUE")
async def test_concurrent_claims_share_no_job(driver: Driver):
    await driver.results(*(spec() for _ in range(200)))
    claims = await asyncio.gather(
        *(driver.claim(random.Random(n).randint(1, 9), worker_id=f"w{n}") for n in range(80))
    )
    claimed = [a.id for one in claims for a in one]
    assert len(claimed) == len(set(claimed)) == 200


async def test_concurrent_submits_with_one_key_make_one_job(driver: Driver):
    batches = await asyncio.gather(*(driver.results(spec(b"p", key="k")) for _ in range(50)))
    results = [result for batch in batches for result in batch]
    assert sum(r.status is SubmitStatus.ACCEPTED for r in results) == 1
    assert len({r.job_id for r in results}) == 1
    assert len(await driver.all_jobs()) == 1


async def test_concurrent_submits_never_exceed_capacity(driver: Driver):
    await driver.queue("small", capacity=10)
    batches = await asyncio.gather(
        *(driver.results(*(spec(queue="small") for _ in range(3))) for _ in range(20))
    )
    accepted = sum(r.status is SubmitStatus.ACCEPTED for batch in batches for r in batch)
    assert accepted == 10
    assert (await driver.stats("small")).depth[P] == 10


@pytest.mark.req("jq:NFR-006")
async def test_of_concurrent_reports_on_one_lease_one_is_accepted(driver: Driver):
    a = await driver.running()
    outcomes = await asyncio.gather(
        *(driver.apply(Transition.succeeded(a.seq, a.lease, b"%d" % n)) for n in range(20))
    )
    applied = [n for n, (outcome,) in enumerate(outcomes) if outcome.applied]
    assert len(applied) == 1
    assert (await driver.job(a.id)).result == b"%d" % applied[0]


async def test_a_job_is_never_seen_half_written(driver: Driver):
    """A reader beside the writers sees no FAILED of a job without retries, and no odd version."""
    seen: set[tuple[State, int]] = set()
    begun = asyncio.Event()

    async def watch(job_id: str) -> None:
        while (X, 5) not in seen:
            job = await driver.job(job_id)
            seen.add((job.state, job.version))
            begun.set()
            await asyncio.sleep(0)

    job_id = await driver.submit(max_retries=0)
    watching = asyncio.create_task(watch(job_id))
    await begun.wait()
    a = await driver.claim_one()
    await driver.fail(a)
    await patience.wait_for(watching, 10)
    assert seen <= {(P, 1), (A, 2), (X, 5)}


@pytest.mark.req("jq:FR-014")
async def test_under_a_storm_everything_runs_once_and_in_order(driver: Driver):
    """Producers and workers at once; the checker judges order, leases and results."""
    total, workers, slots = 300, 4, 3
    done: list[Assignment] = []
    rng = random.Random(20)

    async def produce(count: int) -> None:
        for _ in range(count):
            await driver.results(*(spec(priority=rng.randrange(10)) for _ in range(5)))

    async def work(worker_id: str) -> None:
        reports: list[Transition] = []
        held: list[Assignment] = []
        while len(done) < total:
            application = await driver.store.jobs.apply(
                reports, [Claim(("q",), [worker_id] * slots)]
            )
            assert all(outcome.applied for outcome in application.outcomes)
            done.extend(held)
            held = application.assigned
            reports = [Transition.succeeded(a.seq, a.lease, b"r", 0.0) for a in held]
            if not held:
                await asyncio.sleep(0.001)

    await asyncio.gather(
        *(produce(total // 20) for _ in range(4)), *(work(f"w{n}") for n in range(workers))
    )
    assert len({a.id for a in done}) == total
    await driver.check(
        settled=True,
        overtakes_allowed=0,
        dead_letters_allowed=False,
        concurrency={f"w{n}": slots for n in range(workers)},
    )


async def test_a_cancelled_caller_leaves_the_store_usable(driver: Driver):
    """A task that is cancelled in the middle of a call must not tear others' writes."""
    tasks = [asyncio.create_task(driver.store.jobs.submit(new(spec()))) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    answered = [t.result().results[0].job_id for t in tasks if not t.cancelled()]
    for job_id in answered:
        assert await driver.state(job_id) is P
    assert len(await driver.claim(100)) == len(await driver.all_jobs()) >= len(answered)
