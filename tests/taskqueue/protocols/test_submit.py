"""Submit: create, enqueue; each call failing, and each answer lost."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import (
    DeadlineExceeded,
    Internal,
    KeyConflict,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
    Unreachable,
)
from jobqueue.core.waiting import deadline, remaining
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import Spec, Status
from tests.taskqueue.protocols.faulty import (
    Call,
    Hold,
    fails,
    first,
    loses_reply,
    twice,
)
from tests.taskqueue.protocols.rig import SPEC, Lines, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

UNSURE = [
    Unavailable("down"),
    DeadlineExceeded("late"),
    OutcomeUnknown("lost"),
    Internal("the stream was reset"),
]
by_code = pytest.mark.parametrize("error", UNSURE, ids=lambda error: error.code)


def called(rig: Rig) -> list[str]:
    return [call.point for call in rig.gateway_calls.calls]


@pytest.mark.req("tq:SUBMIT", "tq:FR-1")
@virtual_time
async def test_a_submit_is_two_calls_in_this_order(rig: Rig):
    job_id = await rig.submit(key="k")
    assert called(rig) == ["jobs.create", "queue.enqueue"]
    assert rig.gateway_calls.calls[1].arguments == (job_id, int(rig.clock.now() * 1000))
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-8")
@virtual_time
async def test_a_submit_is_accepted_at_the_servers_time(rig: Rig):
    assert (await rig.gateway.submit(SPEC, "")).accepted_at_ms == int(rig.clock.now() * 1000)


@pytest.mark.req("tq:SUBMIT", "tq:CODES")
@virtual_time
async def test_every_call_delivered_twice_is_one_job(rig: Rig):
    rig.gateway_calls.choose = lambda call: twice
    job_id = await rig.submit()
    assert [summary.job_id for summary in await rig.jobs()] == [job_id]
    assert await rig.work_off() == [job_id]
    await rig.check()


# -- the enqueue fails: the create is undone -------------------------------------------------------


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1")
@by_code
@virtual_time
async def test_a_failed_enqueue_deletes_the_job_and_answers_unavailable(rig: Rig, error):
    rig.gateway_calls.on("queue.enqueue", fails(error))
    with pytest.raises(Unavailable, match="could not be queued"):
        await rig.submit(key="k")
    assert called(rig) == ["jobs.create", "queue.enqueue", "jobs.delete_if"]
    assert rig.gateway_calls.calls[-1].arguments[1] is Status.QUEUED
    assert await rig.jobs() == []
    assert not rig.lines.anomalies()
    assert await rig.submit(Spec("another"), "k")  # the key is free
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1", "tq:CODES")
@virtual_time
async def test_a_full_queue_deletes_the_job_and_says_that_it_is_full(lines: Lines):
    rig = Rig(lines, max_queued=1)
    await rig.submit()
    with pytest.raises(QueueFull):
        await rig.submit()
    assert len(await rig.jobs()) == 1
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1", "tq:LOG")
@pytest.mark.parametrize("fault", [fails(), loses_reply()], ids=["not deleted", "answer lost"])
@virtual_time
async def test_when_the_delete_fails_as_well_an_anomaly_names_the_job(rig: Rig, fault):
    rig.gateway_calls.on("queue.enqueue", fails())
    rig.gateway_calls.on("jobs.delete_if", fault)
    with pytest.raises(Unavailable):
        await rig.submit()
    job_id = rig.gateway_calls.of("jobs.delete_if")[0].arguments[0]
    (line,) = rig.lines.anomalies(job_id)
    assert line.levelname == "ERROR"
    await rig.check()


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_the_undoing_is_not_bound_by_the_clients_deadline(rig: Rig):
    left: list[float] = []

    async def measure(call: Call):
        left.append(remaining(60.0))
        return await call.go()

    rig.gateway_calls.on("queue.enqueue", fails())
    rig.gateway_calls.on("jobs.delete_if", measure)
    with deadline(0.0), pytest.raises(Unavailable):
        await rig.submit()
    assert left == [60.0]
    assert await rig.jobs() == []


@pytest.mark.req("tq:SUBMIT", "tq:DEDUP", "tq:LOCK-1")
@pytest.mark.parametrize("happened", [False, True], ids=["not deleted", "answer lost"])
@virtual_time
async def test_a_job_whose_delete_was_not_answered_is_not_accepted_before_it_is(rig: Rig, happened):
    """That delete may still arrive: then an accepted job would be gone."""
    rig.gateway_calls.on("queue.enqueue", fails())
    faults = [loses_reply()] if happened else [fails(), fails()]
    rig.gateway_calls.on("jobs.delete_if", *faults)
    with pytest.raises(Unavailable):
        await rig.submit(key="k")
    if not happened:
        with pytest.raises(Unavailable, match="client_request_id"):
            await rig.submit(key="k")
    job_id = await rig.submit(key="k")
    deletes = rig.gateway_calls.of("jobs.delete_if")
    assert len({call.request_id for call in deletes}) <= 1
    for late in list(deletes):
        await late.go()
    assert await rig.work_off() == [job_id]
    assert len(await rig.jobs()) == 1
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:DEDUP")
@virtual_time
async def test_a_job_that_was_taken_before_its_delete_is_answered_is_accepted(rig: Rig):
    rig.gateway_calls.on("queue.enqueue", loses_reply())
    rig.gateway_calls.on("jobs.delete_if", fails())
    with pytest.raises(Unavailable):
        await rig.submit(key="k")
    taken = (await rig.fetch()).job_id
    assert await rig.submit(key="k") == taken
    assert len(rig.queue) == 0
    await rig.report(taken)
    await rig.check()


# -- the answer to the enqueue is lost -------------------------------------------------------------


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1")
@by_code
@virtual_time
async def test_an_unanswered_enqueue_of_a_job_that_nobody_took_is_undone(rig: Rig, error):
    rig.gateway_calls.on("queue.enqueue", loses_reply(error))
    with pytest.raises(Unavailable):
        await rig.submit()
    assert await rig.jobs() == []
    assert len(rig.queue) == 1  # an id without a job
    assert await rig.work_off() == []  # nobody is given it
    assert len(rig.lines.of(journal.RACE)) == 1
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1")
@pytest.mark.parametrize("finished", [False, True], ids=["RUNNING", "DONE"])
@virtual_time
async def test_an_unanswered_enqueue_of_a_job_that_was_taken_is_accepted(rig: Rig, finished):
    async def take() -> None:
        work = await rig.fetch()
        if finished:
            await rig.report(work.job_id)

    async def enqueued_taken_and_unanswered(call: Call):
        await call.go()
        await take()
        raise Unavailable("lost")

    rig.gateway_calls.on("queue.enqueue", enqueued_taken_and_unanswered)
    job_id = await rig.submit()
    assert await rig.status(job_id) is (Status.DONE if finished else Status.RUNNING)
    if not finished:
        await rig.report(job_id)
    await rig.check()


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_a_job_taken_between_the_lost_answer_and_the_delete_is_accepted(rig: Rig):
    rig.gateway_calls.on("queue.enqueue", loses_reply())
    rig.gateway_calls.on("jobs.delete_if", first(rig.fetch))
    job_id = await rig.submit()
    assert await rig.status(job_id) is Status.RUNNING
    await rig.report(job_id)
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:DISPATCH")
@virtual_time
async def test_a_job_deleted_between_the_take_and_its_start_is_given_to_nobody(rig: Rig):
    """The order of the race that the delete wins."""
    hold = Hold()
    rig.gateway_calls.on("queue.enqueue", loses_reply())
    rig.gateway_calls.on("jobs.delete_if", hold.after)
    submitting = asyncio.create_task(rig.submit())
    await hold.reached.wait()
    assert (await rig.fetch()).job_id == ""
    hold.release()
    with pytest.raises(Unavailable):
        await submitting
    await rig.check()


# -- the answer to the create is lost --------------------------------------------------------------


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1", "tq:NFR-5", "tq:RETRY")
@pytest.mark.parametrize("key", ["", "k"])
@by_code
@virtual_time
async def test_a_create_that_is_not_answered_is_an_anomaly_and_no_second_call(rig, error, key):
    """The client of the job service has made its four attempts before."""
    rig.gateway_calls.on("jobs.create", loses_reply(error))
    with pytest.raises(type(error)):
        await rig.submit(key=key)
    (line,) = rig.lines.anomalies()
    # Its id is known to nobody, so the line has that of the request.
    assert line.__dict__["request_id"] == rig.gateway_calls.calls[0].request_id
    assert called(rig) == ["jobs.create"]
    await rig.reconcile()
    assert await rig.work_off() == [summary.job_id for summary in await rig.jobs()]
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:CODES")
@virtual_time
async def test_a_create_that_reached_nobody_is_no_anomaly(rig: Rig):
    rig.gateway_calls.on("jobs.create", fails(Unreachable("refused")))
    with pytest.raises(Unavailable):
        await rig.submit()
    assert not rig.lines.anomalies()


@pytest.mark.req("tq:SUBMIT", "tq:DEDUP")
@virtual_time
async def test_a_keyed_job_left_by_an_unanswered_create_is_queued_by_the_next_submit(rig: Rig):
    rig.gateway_calls.on("jobs.create", loses_reply())
    with pytest.raises(Unavailable):
        await rig.submit(key="k")
    assert len(rig.queue) == 0
    job_id = await rig.submit(key="k")
    assert await rig.work_off() == [job_id]
    assert len(await rig.jobs()) == 1
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:CODES")
@virtual_time
async def test_what_is_certain_is_not_asked_again(rig: Rig):
    await rig.submit(key="k")
    with pytest.raises(KeyConflict):
        await rig.submit(Spec("another"), "k")
    rig.gateway_calls.on("jobs.create", fails(QueueFull("no room")))
    with pytest.raises(QueueFull):
        await rig.submit()
    assert len(rig.gateway_calls.of("jobs.create")) == 3
    assert not rig.lines.anomalies()


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.req("tq:DEDUP", "tq:SUBMIT")
@virtual_time
async def test_many_submits_of_one_key_at_once_are_one_job(rig: Rig):
    job_ids = await asyncio.gather(*(rig.submit(key="k") for _ in range(5)))
    assert len(set(job_ids)) == 1
    assert await rig.work_off() == [job_ids[0]]
    await rig.check()


@pytest.mark.req("tq:DEDUP", "tq:SUBMIT", "tq:LOCK-1")
@pytest.mark.parametrize("where", ["before", "after"])
@virtual_time
async def test_a_second_submit_is_not_told_of_a_job_that_the_first_undoes(rig: Rig, where):
    hold = Hold()
    rig.gateway_calls.on("queue.enqueue", fails())
    rig.gateway_calls.on("jobs.delete_if", getattr(hold, where))
    first_one = asyncio.create_task(rig.submit(key="k"))
    await hold.reached.wait()
    second = asyncio.create_task(rig.submit(key="k"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    hold.release()
    with pytest.raises(Unavailable):
        await first_one
    job_id = await second
    assert len(rig.gateway_calls.of("jobs.create")) == 2
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:DEDUP")
@virtual_time
async def test_other_keys_and_no_key_do_not_wait(rig: Rig):
    hold = Hold()
    rig.gateway_calls.on("queue.enqueue", hold.before)
    slow = asyncio.create_task(rig.submit(key="k"))
    await hold.reached.wait()
    await rig.submit(key="l")
    await rig.submit()
    assert not slow.done()
    hold.release()
    await slow
    await rig.work_off()
    await rig.check()


@pytest.mark.req("tq:DEDUP", "tq:SUBMIT")
@virtual_time
async def test_only_who_created_a_job_may_undo_it(rig: Rig):
    job_id = await rig.submit(key="k")
    rig.gateway_calls.on("queue.enqueue", fails())
    with pytest.raises(Unavailable):
        await rig.gateway.submit(SPEC, "k")
    assert not rig.gateway_calls.of("jobs.delete_if")
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:DEDUP")
@virtual_time
async def test_a_duplicate_of_a_job_that_runs_or_ended_is_the_job_and_queues_nothing(rig: Rig):
    job_id = await rig.running(key="k")
    assert await rig.submit(key="k") == job_id
    await rig.report(job_id)
    assert await rig.submit(key="k") == job_id
    assert len(rig.gateway_calls.of("queue.enqueue")) == 1
    await rig.check()


@pytest.mark.req("tq:DEDUP", "tq:DISPATCH", "tq:LOCK-12")
@virtual_time
async def test_a_duplicate_between_the_take_and_the_start_does_not_start_it_twice(rig: Rig):
    job_id = await rig.submit(key="k")
    rig.coordinator_calls.on("jobs.transition QUEUED->RUNNING", first(lambda: rig.submit(key="k")))
    assert (await rig.fetch()).job_id == job_id
    assert len(rig.queue) == 1  # for the second time
    assert await rig.work_off() == []
    await rig.report(job_id)
    await rig.check()


# -- the caller leaves -----------------------------------------------------------------------------


@pytest.mark.req("tq:SUBMIT", "tq:NFR-5")
@pytest.mark.parametrize("point", ["jobs.create", "queue.enqueue"])
@pytest.mark.parametrize("where", ["before", "after"])
@virtual_time
async def test_a_submit_whose_caller_left_ends_with_the_job_in_the_queue(rig, point, where):
    hold = Hold()
    rig.gateway_calls.on(point, getattr(hold, where))
    caller = asyncio.create_task(rig.gateway.submit(SPEC, "k"))
    await hold.reached.wait()
    caller.cancel()
    await asyncio.wait([caller])
    hold.release()
    await rig.gateway.stop()
    (job,) = await rig.jobs()
    assert await rig.work_off() == [job.job_id]
    await rig.check()


@pytest.mark.req("tq:SUBMIT", "tq:LOCK-1")
@virtual_time
async def test_a_submit_whose_caller_left_still_undoes(rig: Rig):
    hold = Hold()
    rig.gateway_calls.on("queue.enqueue", fails())
    rig.gateway_calls.on("jobs.delete_if", hold.before)
    caller = asyncio.create_task(rig.gateway.submit(SPEC, "k"))
    await hold.reached.wait()
    caller.cancel()
    await asyncio.wait([caller])
    hold.release()
    await rig.gateway.stop()
    assert await rig.jobs() == []


@pytest.mark.req("tq:SUBMIT", "tq:NFR-5")
@virtual_time
async def test_a_stop_that_cuts_off_a_submit_names_the_job(rig: Rig):
    hold = Hold()
    rig.gateway_calls.on("queue.enqueue", hold.before)
    caller = asyncio.create_task(rig.gateway.submit(SPEC, ""))
    await hold.reached.wait()
    await rig.gateway.stop()
    await asyncio.wait([caller])
    (job,) = await rig.jobs()
    assert rig.lines.anomalies(job.job_id)
    await rig.check()


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_who_leaves_while_another_submits_the_key_has_begun_nothing(rig: Rig):
    hold = Hold()
    rig.gateway_calls.on("jobs.create", hold.before)
    first_caller = asyncio.create_task(rig.submit(key="k"))
    await hold.reached.wait()
    waiting = [asyncio.create_task(rig.submit(key="k")) for _ in range(3)]
    await asyncio.sleep(0)
    for caller in waiting[:2]:
        caller.cancel()
    await asyncio.wait(waiting[:2])
    hold.release()
    assert await waiting[2] == await first_caller
    await rig.gateway.stop()
    assert called(rig) == ["jobs.create", "queue.enqueue"] * 2
    assert await rig.submit(key="k")  # nobody holds the key any more
    await rig.work_off()
    await rig.check()
