"""What time does: retries, expiries, timeouts, lost workers, retention."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import QueueSpec, QueueUpdate
from jobqueue.core.store import Rules
from tests import patience
from tests.engine.rig import Rig, until
from tests.virtual_time import stand_still

P, A, R, D, F, X = State


@pytest.mark.req("jq:FR-033")
async def test_a_failed_job_comes_back_after_its_backoff(rig: Rig):
    worker, assignment = await rig.running()
    await worker.fail(assignment)
    worker.link.grant(1)
    await asyncio.sleep(0.1)
    assert await rig.state(assignment.id) is F
    rig.clock.advance(6.3)  # 5 s and at most 25 % of it
    again = await worker.gets_one()
    assert (again.id, again.attempt, again.retry_count) == (assignment.id, 2, 1)


@pytest.mark.req("jq:AC-3")
async def test_a_job_that_fails_too_often_is_a_dead_letter(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(max_retries=2)
    for _ in range(3):
        assignment = await worker.gets_one()
        await worker.fail(assignment)
        worker.link.grant(1)
        rig.clock.advance(1_000.0)
    job = await rig.reaches(job_id, X)
    assert (job.attempt, job.retry_count, job.reason) == (3, 2, Reason.RETRIES_EXHAUSTED)


@pytest.mark.req("jq:FR-004")
async def test_a_job_expires_by_itself(rig: Rig):
    job_id = await rig.submit(ttl=10.0)
    rig.clock.advance(10.0)
    assert (await rig.reaches(job_id, X)).reason is Reason.TTL_EXPIRED


async def test_a_delayed_job_is_handed_out_when_its_time_has_come(rig: Rig):
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(delay=60.0)
    await asyncio.sleep(0.1)
    assert worker.got == []
    rig.clock.advance(60.0)
    assert (await worker.gets_one()).id == job_id


@pytest.mark.req("jq:FR-016")
async def test_an_assignment_that_is_not_started_is_taken_back(open_rig):
    rig: Rig = await open_rig(Rules(assignment_timeout=20.0))
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    assignment = await worker.gets_one()
    rig.clock.advance(21.0)
    job = await rig.reaches(job_id, F)
    assert job.reason is Reason.ASSIGNMENT_TIMEOUT
    await until(lambda: worker.cancelled == [assignment.lease])
    assert await worker.succeed(assignment) is False


async def test_the_watchdog_stops_what_runs_too_long(open_rig):
    rig: Rig = await open_rig(Rules(watchdog_grace=1.0))
    worker, assignment = await rig.running(timeout=10.0)
    rig.clock.advance(10.5)
    await asyncio.sleep(0.1)
    assert await rig.state(assignment.id) is R
    rig.clock.advance(1.0)
    job = await rig.reaches(assignment.id, F)
    assert job.reason is Reason.TIMED_OUT
    await until(lambda: worker.cancelled == [assignment.lease])


async def test_old_done_jobs_are_pruned_where_that_is_asked_for(open_rig):
    rig: Rig = await open_rig(retention=100.0)
    worker, assignment = await rig.running()
    await worker.succeed(assignment)
    assert (await rig.engine.queue_stats("default")).depth[D] == 1
    rig.engine._sweeper._prune_at = 0.0
    rig.clock.advance(101.0)
    async with patience.timeout(5):
        while (await rig.engine.queue_stats("default")).depth[D]:
            await asyncio.sleep(0.01)


async def pruned(rig: Rig) -> None:
    """Wait until the sweeper has looked for old jobs, at all of them."""
    sweeper = rig.engine._sweeper
    sweeper._prune_at = sweeper._look_at_all = 0.0
    await until(lambda: sweeper._prune_at > 0.0)


async def left(rig: Rig, *jobs: str) -> list[bool]:
    return [await rig.store.reads.get(job) is not None for job in jobs]


async def test_done_jobs_are_kept_for_a_week_by_default_and_the_removal_is_said(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    worker, assignment = await rig.running()
    await worker.succeed(assignment)
    rig.clock.advance(7 * 86_400.0 - 60.0)
    await pruned(rig)
    assert await left(rig, assignment.id) == [True]
    assert "removed" not in caplog.text
    rig.clock.advance(120.0)
    await pruned(rig)
    assert await left(rig, assignment.id) == [False]
    assert "removed 1 DONE jobs that ended more than 604800 s ago" in caplog.text


@pytest.mark.req("jq:FR-035")
async def test_each_queue_keeps_its_jobs_as_long_as_it_says(open_rig):
    rig: Rig = await open_rig(retention=100.0)
    kept = {"default": None, "long": 1_000.0, "always": 0.0, "short": 10.0}
    jobs: dict[str, str] = {}
    dead: dict[str, str] = {}
    worker = await rig.worker(queues=tuple(kept), slots=8)
    for name, age in kept.items():
        if name != "default":
            await rig.engine.create_queue(
                QueueSpec(name=name, retention=age, dead_letter_retention=age)
            )
        jobs[name] = await rig.submit(queue=name)
        dead[name] = await rig.submit(queue=name, max_retries=0)
    for _ in range(8):
        assignment = await worker.gets_one()
        if assignment.id in dead.values():
            await worker.fail(assignment)
        else:
            await worker.succeed(assignment)
    for age, gone in ((5.0, []), (15.0, ["short"]), (105.0, ["short", "default"])):
        rig.clock.advance(age)
        await pruned(rig)
        assert await left(rig, *jobs.values()) == [name not in gone for name in jobs]
    assert await left(rig, *dead.values()) == [True, True, True, False]  # FR-035 unless told
    rig.clock.advance(1e7)
    await pruned(rig)
    assert await left(rig, *jobs.values()) == [False, False, True, False]
    assert await left(rig, *dead.values()) == [True, False, True, False]
    await rig.engine.update_queue("always", QueueUpdate(retention=None, dead_letter_retention=1.0))
    await pruned(rig)
    assert await left(rig, jobs["always"], dead["always"]) == [False, False]


async def test_a_sleeping_sweeper_is_woken_for_what_comes_sooner(open_rig):
    """The interval is long; the job's own time decides."""
    rig: Rig = await open_rig(interval=30.0)
    job_id = await rig.submit(ttl=0.2)
    limit = patience.Limit(5)
    rig.clock.advance(0.2)
    job = await rig.reaches(job_id, X)
    assert job.reason is Reason.TTL_EXPIRED
    assert not limit.over


# -- lost workers --------------------------------------------------------------------------


@pytest.mark.req("jq:FR-020", "jq:NFR-007")
async def test_a_silent_worker_goes_offline_and_its_jobs_fail_over(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=0.2)
    _, running = await rig.running()
    rig.clock.advance(0.3)
    job = await rig.reaches(running.id, F)
    assert job.reason is Reason.WORKER_LOST
    assert "heartbeat" in job.error
    assert [w.status for w in await rig.engine.list_workers()] == [WorkerStatus.OFFLINE]


@pytest.mark.req("jq:FR-020")
async def test_a_worker_that_beats_is_left_alone(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=0.2)
    worker, running = await rig.running()
    for _ in range(10):
        rig.clock.advance(0.15)
        worker.link.pulse([running.lease])
        await asyncio.sleep(0.05)
    assert await rig.state(running.id) is R
    assert [w.status for w in await rig.engine.list_workers()] == [WorkerStatus.ONLINE]


async def test_an_offline_worker_gets_nothing_more_until_it_registers_again(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=0.2)
    worker = await rig.worker(slots=1)
    rig.clock.advance(0.3)
    async with patience.timeout(5):
        while (await rig.engine.list_workers())[0].status is not WorkerStatus.OFFLINE:
            await asyncio.sleep(0.01)
    job_id = await rig.submit()
    await asyncio.sleep(0.1)
    assert (worker.got, await rig.state(job_id)) == ([], P)
    assert worker.link.pulse([]).known is False
    again = await rig.worker(slots=1)
    assert (await again.gets_one()).id == job_id


async def test_nobody_is_judged_before_a_full_timeout_has_passed_since_the_start(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=3.0)
    _, running = await rig.running()
    rig.clock.advance(1_000.0)  # silent for ages by the store's clock, but not under our eyes
    await asyncio.sleep(0.3)
    assert await rig.state(running.id) is R
    await rig.reaches(running.id, F)


async def test_after_its_own_stall_the_reaper_waits_a_full_timeout(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=2.0)
    await asyncio.sleep(2.1)  # it judges by now
    worker, running = await rig.running()
    stand_still(3.1)  # the whole process stood still: heartbeats may have, too
    rig.clock.advance(100.0)
    await asyncio.sleep(0.2)
    assert await rig.state(running.id) is R
    worker.link.pulse([running.lease])
    await asyncio.sleep(2.1)
    assert await rig.state(running.id) is R


async def test_after_a_store_outage_the_reaper_waits_a_full_timeout(open_rig):
    rig: Rig = await open_rig(heartbeat_timeout=2.0)
    await asyncio.sleep(2.1)
    worker, running = await rig.running()
    rig.store.fail["upkeep.due"] = [Unavailable("down")] * 5
    rig.clock.advance(100.0)
    await until(lambda: not rig.store.fail["upkeep.due"])
    await asyncio.sleep(0.2)
    assert await rig.state(running.id) is R
    worker.link.pulse([running.lease])
    await asyncio.sleep(2.1)
    assert await rig.state(running.id) is R


@pytest.mark.req("jq:FR-020")
async def test_a_fail_over_that_was_interrupted_is_taken_up_again(open_rig):
    """The worker is OFFLINE, but failing its jobs did not go through: they must not be stranded."""
    rig: Rig = await open_rig(heartbeat_timeout=0.2)
    _, running = await rig.running()
    rig.store.fail["jobs.apply"] = [Unavailable("down")]
    rig.clock.advance(0.3)
    await until(lambda: not rig.store.fail["jobs.apply"])
    rig.clock.advance(100.0)
    job = await rig.reaches(running.id, F)
    assert job.reason is Reason.WORKER_LOST
