"""A store that fails now and then: the caller hears the truth, and everything goes on after."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import OutcomeUnknown, Unavailable
from jobqueue.core.job import JobQuery, JobSpec, SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from tests.engine.rig import Rig

P, A, R, D, F, X = State


@pytest.mark.req("jq:NFR-005")
@pytest.mark.parametrize("error", [Unavailable("down"), OutcomeUnknown("lost")], ids=repr)
async def test_a_failed_write_is_an_error_to_the_submitter(rig: Rig, error):
    rig.store.fail["jobs.submit"] = [error]
    with pytest.raises(type(error)):
        await rig.submit()
    assert (await rig.engine.list_jobs(JobQuery())).jobs == []
    assert await rig.state(await rig.submit()) is P


@pytest.mark.req("jq:NFR-005")
async def test_part_of_a_large_batch_that_failed_does_not_deny_the_part_that_was_written(open_rig):
    """Whoever is told "it did not happen" submits again: that must not be said of accepted jobs."""
    rig: Rig = await open_rig(submit_group=2)
    rig.store.fail["jobs.submit"] = [None, Unavailable("down")]
    results = await rig.engine.submit([JobSpec(payload=b"%d" % n) for n in range(6)])
    written = {job.id for job in (await rig.engine.list_jobs(JobQuery())).jobs}
    assert {r.job_id for r in results if r.status is SubmitStatus.ACCEPTED} == written
    refused = [r for r in results if r.status is SubmitStatus.REFUSED]
    assert len(results) == 6
    assert refused
    assert all(isinstance(r.error, Unavailable) for r in refused)


async def test_slots_promised_in_a_failed_write_are_not_lost(rig: Rig):
    worker = await rig.worker(slots=1)
    rig.store.fail["jobs.submit"] = [Unavailable("down")]
    with pytest.raises(Unavailable):
        await rig.submit()
    job_id = await rig.submit()
    assert (await worker.gets_one()).id == job_id


async def test_a_report_that_failed_frees_nothing_and_can_be_repeated(rig: Rig):
    worker, assignment = await rig.running()
    waiting = await rig.submit(b"next")
    rig.store.fail["jobs.apply"] = [Unavailable("down")]
    with pytest.raises(Unavailable):
        await worker.succeed(assignment, freed=1)
    await asyncio.sleep(0.1)
    assert (worker.got, await rig.state(waiting)) == ([], P)
    assert await worker.succeed(assignment, freed=1) is True
    assert (await worker.gets_one()).id == waiting


async def test_one_workers_failed_batch_does_not_swallow_anothers_report(rig: Rig):
    one = await rig.worker("one", slots=1)
    await rig.submit(b"1")
    two = await rig.worker("two", slots=1)
    a = await one.gets_one()
    await rig.submit(b"2")
    b = await two.gets_one()
    rig.store.fail["jobs.apply"] = [Unavailable("down")]
    answers = await asyncio.gather(one.succeed(a), two.succeed(b), return_exceptions=True)
    for worker, assignment, answer in ((one, a, answers[0]), (two, b, answers[1])):
        if isinstance(answer, BaseException):
            assert isinstance(answer, Unavailable)
            assert await worker.succeed(assignment) is True
        else:
            assert answer is True
    assert {await rig.state(a.id), await rig.state(b.id)} == {D}


async def test_the_scheduler_survives_an_outage(rig: Rig):
    rig.store.fail["jobs.claim"] = [Unavailable("down")] * 3
    job_id = await rig.submit()
    worker = await rig.worker(slots=1)
    assert (await worker.gets_one()).id == job_id


async def test_the_sweeper_survives_an_outage(rig: Rig):
    rig.store.fail["upkeep.due"] = [Unavailable("down")] * 3
    job_id = await rig.submit(ttl=5.0)
    rig.clock.advance(5.0)
    await rig.reaches(job_id, X)


async def test_concurrent_submits_are_all_answered_and_share_writes(rig: Rig):
    rig.store.calls.clear()
    ids = await asyncio.gather(*(rig.submit(b"%d" % n) for n in range(200)))
    assert len(set(ids)) == 200
    assert rig.store.calls.count("jobs.submit") < 20
    payloads = [(await rig.engine.get(job_id)).payload for job_id in ids]
    assert payloads == [b"%d" % n for n in range(200)]


async def test_concurrent_reports_of_two_workers_are_told_apart(rig: Rig):
    workers = [await rig.worker(f"w{n}", slots=3) for n in range(2)]
    await rig.engine.submit([JobSpec(payload=b"%d" % n) for n in range(6)])
    held = [await worker.gets(3) for worker in workers]
    answers = await asyncio.gather(
        *(
            worker.link.report(
                [
                    Transition.succeeded(own[0].seq, own[0].lease, b"r"),
                    Transition.succeeded(own[1].seq, 1, b"stale"),
                    Transition.failed(own[2].seq, own[2].lease, "boom"),
                ]
            )
            for worker, own in zip(workers, held, strict=True)
        )
    )
    assert answers == [[True, False, True]] * 2
