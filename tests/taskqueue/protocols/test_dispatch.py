"""Dispatch: dequeue, compare-and-set, assign; each call failing or unanswered; the rescue."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import (
    DeadlineExceeded,
    Internal,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
)
from jobqueue.core.waiting import deadline, remaining
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.model import (
    RETRY_AFTER_RANGE_MS,
    Actor,
    Applied,
    Status,
    clamp_hint,
)
from tests.taskqueue.protocols.faulty import (
    Call,
    Hold,
    answers,
    fails,
    first,
    loses_reply,
    then,
    twice,
)
from tests.taskqueue.protocols.rig import SPEC, WORKER, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

START = "jobs.transition QUEUED->RUNNING"
RESCUE = "queue.enqueue rescue"
LOST_CAS = answers(Applied(False, Status.QUEUED))
UNANSWERED = [Unavailable("x"), DeadlineExceeded("x"), OutcomeUnknown("x")]
by_code = pytest.mark.parametrize("error", UNANSWERED, ids=lambda error: error.code)


def called(rig: Rig) -> list[str]:
    return [call.point for call in rig.coordinator_calls.calls]


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-12", "tq:FR-6", "tq:LOCK-31")
@virtual_time
async def test_jobs_are_taken_started_and_assigned_in_order(rig: Rig):
    first_one, second = await rig.submit(), await rig.submit()
    work = await rig.fetch()
    assert (work.job_id, work.spec) == (first_one, SPEC)
    assert called(rig) == ["queue.dequeue", "jobs.get", START]
    assert await rig.status(first_one) is Status.RUNNING
    assert rig.coordinator.assigned == 1
    assert (await rig.fetch()).job_id == second
    for job_id in (first_one, second):
        await rig.report(job_id)
    assert rig.coordinator.assigned == 0
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-13", "tq:LIVENESS")
@virtual_time
async def test_without_work_there_is_a_hint(rig: Rig):
    work = await rig.fetch()
    assert (work.job_id, work.spec, work.retry_after_ms) == ("", None, 200)
    assert called(rig) == ["queue.dequeue"]


@pytest.mark.req("tq:LOCK-13", "tq:LIVENESS")
@pytest.mark.parametrize(
    ("asked", "hint"), [(0, 50), (49, 50), (50, 50), (200, 200), (1000, 1000), (1001, 1000)]
)
@virtual_time
async def test_the_hint_is_clamped(rig: Rig, asked, hint):
    assert clamp_hint(asked) == hint
    coordinator = Coordinator(rig.ledger, rig.queue, rig.shelf, retry_after_ms=asked)
    await coordinator.heartbeat(WORKER, 0, 1)
    assert (await coordinator.fetch(WORKER, request_id="r")).retry_after_ms == hint


@pytest.mark.req("tq:DISPATCH", "tq:CODES")
@virtual_time
async def test_every_call_delivered_twice_is_one_assignment(rig: Rig):
    rig.coordinator_calls.choose = lambda call: twice
    rig.worker_calls.choose = lambda call: twice
    jobs = [await rig.submit() for _ in range(3)]
    assert await rig.work_off() == jobs
    await rig.check()


# -- lost answers ----------------------------------------------------------------------------------


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5", "tq:LOCK-40")
@pytest.mark.parametrize("error", [*UNANSWERED, Internal("x")], ids=lambda error: error.code)
@pytest.mark.parametrize("by", [WORKER, "worker-2"], ids=["same worker", "another worker"])
@virtual_time
async def test_an_unanswered_take_is_asked_for_again_by_the_next_fetch(rig: Rig, error, by):
    job_id = await rig.submit()
    rig.coordinator_calls.on("queue.dequeue", loses_reply(error))
    with pytest.raises(type(error)):
        await rig.fetch()
    assert len(rig.queue) == 0
    assert (await rig.fetch(by)).job_id == job_id
    one, two = rig.coordinator_calls.of("queue.dequeue")
    assert one.request_id == two.request_id
    await rig.report(job_id, worker_id=by)
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5")
@virtual_time
async def test_two_unanswered_takes_at_once_are_both_asked_for_again(rig: Rig):
    jobs = {await rig.submit() for _ in range(2)}
    holds = [Hold(), Hold()]

    async def unanswered(hold: Hold, call: Call):
        await hold.after(call)
        raise Unavailable("lost")

    rig.coordinator_calls.on(
        "queue.dequeue", *(lambda call, hold=hold: unanswered(hold, call) for hold in holds)
    )
    fetches = [asyncio.create_task(rig.fetch()) for _ in holds]
    for hold in holds:
        await hold.reached.wait()
        hold.release()
    await asyncio.wait(fetches)
    assert all(isinstance(fetch.exception(), Unavailable) for fetch in fetches)
    assert len(rig.queue) == 0
    assert set(await rig.work_off()) == jobs
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5")
@virtual_time
async def test_a_take_that_did_not_happen_is_made_by_the_next_fetch(rig: Rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on("queue.dequeue", fails())
    with pytest.raises(Unavailable):
        await rig.fetch()
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5", "tq:LOCK-12")
@by_code
@pytest.mark.parametrize("happened", [True, False], ids=["answer lost", "fails"])
@pytest.mark.parametrize("by", [WORKER, "worker-2"], ids=["same worker", "another worker"])
@virtual_time
async def test_an_unanswered_start_is_asked_for_again_by_the_same_id(rig, error, happened, by):
    job_id = await rig.submit()
    rig.coordinator_calls.on(START, loses_reply(error) if happened else fails(error))
    with pytest.raises(type(error)):
        await rig.fetch()
    assert await rig.status(job_id) is (Status.RUNNING if happened else Status.QUEUED)
    assert (await rig.fetch(by)).job_id == job_id
    one, two = rig.coordinator_calls.of(START)
    assert one.request_id == two.request_id
    assert len(rig.coordinator_calls.of("queue.dequeue")) == 1  # what is here goes first
    await rig.report(job_id, worker_id=by)
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5")
@virtual_time
async def test_a_read_that_fails_before_the_start_strands_nothing(rig: Rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on("jobs.get", fails())
    with pytest.raises(Unavailable):
        await rig.fetch()
    assert await rig.status(job_id) is Status.QUEUED
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5", "tq:FR-6")
@virtual_time
async def test_a_fetch_whose_answer_was_lost_is_answered_the_same_again(rig: Rig):
    job_id = await rig.submit()
    await rig.submit()
    rig.worker_calls.on("coordination.fetch", loses_reply())
    with pytest.raises(Unavailable):
        await rig.fetch(request_id="f")
    assert await rig.status(job_id) is Status.RUNNING
    assert (await rig.fetch(request_id="f")).job_id == job_id
    assert len(rig.queue) == 1
    await rig.report(job_id)
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:DISPATCH")
@virtual_time
async def test_a_fetch_asked_twice_at_once_is_one(rig: Rig):
    job_id = await rig.submit()
    await rig.submit()
    hold = Hold()
    rig.coordinator_calls.on("queue.dequeue", hold.before)
    both = [asyncio.create_task(rig.fetch(request_id="f")) for _ in range(2)]
    await hold.reached.wait()
    hold.release()
    assert [work.job_id for work in await asyncio.gather(*both)] == [job_id, job_id]
    assert len(rig.queue) == 1
    await rig.report(job_id)
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:NFR-5", "tq:DISPATCH")
@virtual_time
async def test_a_read_that_meets_a_defect_puts_the_job_at_the_end_and_says_so(rig: Rig):
    bad, good = await rig.submit(), await rig.submit()
    rig.coordinator_calls.on("jobs.get", fails(Internal("a defect")))
    with pytest.raises(Internal):
        await rig.fetch()
    assert rig.lines.anomalies(bad)
    assert await rig.work_off() == [good, bad]
    await rig.check()


@pytest.mark.req("tq:NFR-5", "tq:DISPATCH", "tq:RETRY")
@pytest.mark.parametrize("fault", [fails, loses_reply], ids=["not applied", "applied"])
@virtual_time
async def test_a_start_that_ends_with_a_defect_is_asked_for_again_later_by_the_same_id(rig, fault):
    """It may have been applied. Meanwhile it does not stand in the way of the others."""
    bad, good = await rig.submit(), await rig.submit()
    rig.coordinator_calls.on(START, fault(Internal("a defect")))
    with pytest.raises(Internal):
        await rig.fetch()
    assert rig.lines.of("start_failed", bad)
    assert await rig.work_off() == [good]
    rig.coordinator_calls.on(START, fails(Internal("a defect")))
    rig.seconds += 0.5
    with pytest.raises(Internal):
        await rig.fetch()
    rig.seconds += 0.5
    assert await rig.work_off() == []  # the pauses grow
    rig.seconds += 0.5
    assert await rig.work_off() == [bad]
    assert len({call.request_id for call in rig.coordinator_calls.of(START)}) == 2
    await rig.check()


# -- a compare-and-set that is lost ----------------------------------------------------------------


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-12")
@pytest.mark.parametrize("canceled", [True, False], ids=["CANCELED", "deleted"])
@virtual_time
async def test_a_job_that_left_queued_is_given_to_nobody_and_not_put_back(rig: Rig, canceled):
    """Somebody else was faster between the read and the compare-and-set."""
    job_id = await rig.submit()
    rig.accepted.clear()

    async def leave() -> None:
        if canceled:
            await rig.ledger.transition(
                job_id, Status.QUEUED, Status.CANCELED, actor=Actor.GATEWAY, request_id=""
            )
        else:
            await rig.ledger.delete_if(job_id, Status.QUEUED, request_id="")

    rig.coordinator_calls.on(START, first(leave))
    work = await rig.fetch()
    assert work.job_id == ""
    assert work.retry_after_ms == RETRY_AFTER_RANGE_MS[0]  # there may be others
    assert rig.lines.of(journal.RACE, job_id)
    assert not rig.coordinator_calls.of(RESCUE)
    assert len(rig.queue) == 0


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-12")
@virtual_time
async def test_a_job_deleted_after_a_lost_compare_and_set_is_forgotten(rig: Rig):
    job_id = await rig.submit()
    rig.accepted.clear()

    async def delete() -> None:
        await rig.ledger.delete_if(job_id, Status.QUEUED, request_id="")

    async def lost(call: Call) -> Applied:
        await delete()
        return Applied(False, Status.QUEUED)

    rig.coordinator_calls.on(START, lost)
    assert (await rig.fetch()).job_id == ""
    assert rig.lines.of(journal.RACE, job_id)
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-42", "tq:LOCK-12", "tq:NFR-5")
@virtual_time
async def test_a_job_still_queued_is_put_back_exactly_once_and_not_assigned(rig: Rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on(START, LOST_CAS)
    assert (await rig.fetch()).job_id == ""
    assert called(rig) == ["queue.dequeue", "jobs.get", START, "jobs.get", RESCUE]
    assert len(rig.lines.of(journal.RESCUE, job_id)) == 1
    assert len(rig.lines.of(journal.RACE, job_id)) == 1
    assert len(rig.queue) == 1
    assert await rig.work_off() == [job_id]
    assert len(rig.coordinator_calls.of(RESCUE)) == 1
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-42")
@virtual_time
async def test_the_rescue_is_not_bound_by_the_workers_deadline(rig: Rig):
    await rig.submit()
    left: list[float] = []

    async def measure(call: Call):
        left.append(remaining(60.0))
        return await call.go()

    rig.coordinator_calls.on(START, LOST_CAS)
    rig.coordinator_calls.on(RESCUE, measure)
    with deadline(0.0):
        await rig.fetch()
    assert left == [60.0]
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:LOCK-42", "tq:NFR-5", "tq:LOG")
@pytest.mark.parametrize(
    "fault",
    [fails(), loses_reply(), fails(QueueFull("full")), answers(False)],
    ids=["fails", "answer lost", "full", "not accepted"],
)
@virtual_time
async def test_a_rescue_that_fails_is_an_anomaly_and_the_job_is_not_stranded(rig: Rig, fault):
    job_id = await rig.submit()
    rig.coordinator_calls.on(START, LOST_CAS)
    rig.coordinator_calls.on(RESCUE, fault)
    assert (await rig.fetch()).job_id == ""
    assert rig.lines.anomalies(job_id)
    assert not rig.lines.of(journal.RESCUE, job_id)
    assert len(rig.coordinator_calls.of(RESCUE)) == 1
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5")
@virtual_time
async def test_a_status_that_cannot_be_read_after_a_lost_compare_and_set_strands_nothing(rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on(START, LOST_CAS)
    rig.coordinator_calls.on("jobs.get", Call.go, fails())
    with pytest.raises(Unavailable):
        await rig.fetch()
    assert await rig.work_off() == [job_id]
    one, two = rig.coordinator_calls.of(START)
    assert one.request_id != two.request_id  # the first answer to that one is "lost", for ever
    await rig.check()


# -- a cancel that came before the start -----------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL")
@pytest.mark.parametrize("point", ["results.store", "jobs.transition RUNNING->CANCELED"])
@pytest.mark.parametrize("fault", [fails(), loses_reply()], ids=["fails", "answer lost"])
@virtual_time
async def test_if_it_cannot_be_ended_before_it_starts_the_report_ends_it(rig, point, fault):
    job_id = await rig.submit()
    await rig.ledger.request_cancel(job_id, "", request_id="")
    rig.coordinator_calls.on(point, fault)
    assert (await rig.fetch()).job_id == job_id
    assert await rig.report(job_id)
    assert await rig.status(job_id) is Status.CANCELED
    await rig.check()


# -- the caller leaves, the coordinator stops ------------------------------------------------------


@pytest.mark.req("tq:DISPATCH", "tq:NFR-5")
@pytest.mark.parametrize("point", ["queue.dequeue", "jobs.get", START])
@pytest.mark.parametrize("where", ["before", "after"])
@virtual_time
async def test_a_fetch_whose_caller_left_is_answered_when_asked_again(rig: Rig, point, where):
    job_id = await rig.submit()
    hold = Hold()
    rig.coordinator_calls.on(point, getattr(hold, where))
    caller = asyncio.create_task(rig.fetch(request_id="f"))
    await hold.reached.wait()
    caller.cancel()
    await asyncio.wait([caller])
    hold.release()
    assert (await rig.fetch(request_id="f")).job_id == job_id
    await rig.report(job_id)
    await rig.check()


@pytest.mark.req("tq:NFR-5")
@virtual_time
async def test_a_stop_puts_back_what_was_taken_and_not_started(rig: Rig):
    job_id = await rig.submit()
    rig.coordinator_calls.on("jobs.get", fails())
    with pytest.raises(Unavailable):
        await rig.fetch()
    await rig.coordinator.stop()
    assert rig.lines.of(journal.RESCUE, job_id)
    rig.new_coordinator()
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:NFR-5")
@pytest.mark.parametrize("happened", [True, False])
@virtual_time
async def test_a_stop_names_what_may_run_and_was_given_to_nobody(rig: Rig, happened):
    job_id = await rig.submit()
    rig.coordinator_calls.on(START, loses_reply() if happened else fails())
    with pytest.raises(Unavailable):
        await rig.fetch()
    await rig.coordinator.stop()
    assert rig.lines.anomalies(job_id)
    rig.new_coordinator()
    assert await rig.work_off() == ([] if happened else [job_id])
    rig.accepted.clear()  # a job that runs nowhere stays RUNNING
    await rig.check()


@pytest.mark.req("tq:NFR-5")
@virtual_time
async def test_a_stop_says_how_many_takes_were_never_answered(rig: Rig):
    await rig.submit()
    rig.coordinator_calls.on("queue.dequeue", loses_reply())
    with pytest.raises(Unavailable):
        await rig.fetch()
    await rig.coordinator.stop()
    (line,) = rig.lines.anomalies()
    assert "1 dequeues have no answer" in line.getMessage()


@pytest.mark.req("tq:NFR-5")
@pytest.mark.parametrize("point", ["queue.dequeue", "jobs.get", START])
@virtual_time
async def test_a_stop_that_cuts_off_a_fetch_loses_no_job_without_a_word(rig: Rig, point):
    job_id = await rig.submit()
    hold = Hold()
    rig.coordinator_calls.on(point, hold.after)
    caller = asyncio.create_task(rig.fetch())
    await hold.reached.wait()
    await rig.coordinator.stop()
    await asyncio.wait([caller])
    if point == "jobs.get":
        assert len(rig.queue) == 1
    else:
        assert rig.lines.anomalies()
    if point == START:
        assert rig.lines.anomalies(job_id)


@pytest.mark.req("tq:DISPATCH")
@virtual_time
async def test_a_job_that_comes_while_a_fetch_is_answered_waits_for_the_next(rig: Rig):
    rig.coordinator_calls.on("queue.dequeue", then(rig.submit))
    assert (await rig.fetch()).job_id == ""
    assert len(await rig.work_off()) == 1
    await rig.check()


@pytest.mark.req("tq:CODES", "tq:DISPATCH")
@virtual_time
async def test_two_workers_that_chose_one_request_id_get_two_jobs(rig: Rig):
    jobs = {await rig.submit(), await rig.submit()}
    given = {name: await rig.fetch(name, request_id="1") for name in ("one", "two")}
    assert {work.job_id for work in given.values()} == jobs
    for name, work in given.items():
        assert await rig.report(work.job_id, worker_id=name, request_id="2")
        assert await rig.status(work.job_id) is Status.DONE
    await rig.check()
