"""Cancel against dispatch, in every order, and each of its calls failing or unanswered."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import DeadlineExceeded, NotFound, Unavailable, Unreachable
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import (
    CANCELED_RUNNING,
    CANCELED_UNSTARTED,
    Applied,
    Canceled,
    Envelope,
    Status,
    WorkOutcome,
)
from jobqueue.taskqueue.components.protocols import new_request_id
from tests.taskqueue.protocols.faulty import (
    Hold,
    answers,
    fails,
    first,
    loses_reply,
    then,
    twice,
)
from tests.taskqueue.protocols.rig import Lines, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

Q, R, D, F, C = Status
QUEUED_CANCEL = [
    "jobs.get",
    "queue.remove",
    "results.store",
    "jobs.transition QUEUED->CANCELED",
]


def called(rig: Rig) -> list[str]:
    """By the gateway, since the submit."""
    return [call.point for call in rig.gateway_calls.calls][2:]


async def result_status(rig: Rig, job_id: str) -> Status | None:
    envelope = await rig.gateway.result(job_id)
    return None if envelope is None else envelope.status


# -- without a race --------------------------------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:FR-4", "tq:TERMINAL", "tq:LOCK-15")
@virtual_time
async def test_a_queued_job_is_removed_then_enveloped_then_ended(rig: Rig):
    job_id = await rig.submit()
    assert await rig.gateway.cancel(job_id, "why") == Canceled(job_id, True, C, False)
    assert called(rig) == QUEUED_CANCEL
    envelope = await rig.gateway.result(job_id)
    assert envelope is not None
    assert envelope.output_summary == CANCELED_UNSTARTED
    assert await rig.work_off() == []
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:CODES")
@virtual_time
async def test_a_cancel_of_an_ended_job_says_so_and_changes_nothing(rig: Rig):
    done, canceled = await rig.running(), await rig.submit()
    await rig.report(done)
    await rig.gateway.cancel(canceled, "")
    for _ in range(2):
        assert await rig.gateway.cancel(done, "") == Canceled(done, True, D, True)
        assert await rig.gateway.cancel(canceled, "") == Canceled(canceled, True, C, True)
    assert not (await rig.ledger.get(done)).summary.cancel_requested
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:LOCK-19")
@virtual_time
async def test_a_cancel_of_an_unknown_job_is_not_found(rig: Rig):
    with pytest.raises(NotFound):
        await rig.gateway.cancel("gone", "")


@pytest.mark.req("tq:CANCEL", "tq:LOCK-39")
@pytest.mark.parametrize("outcome", WorkOutcome, ids=lambda outcome: outcome.name)
@virtual_time
async def test_a_running_job_goes_on_and_is_canceled_by_its_report(rig: Rig, outcome):
    job_id = await rig.running()
    for _ in range(2):
        assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, R, False)
    assert await rig.status(job_id) is R
    assert await result_status(rig, job_id) is None
    assert await rig.report(job_id, outcome)
    assert await rig.status(job_id) is C
    envelope = await rig.gateway.result(job_id)
    assert envelope is not None
    assert envelope.output_summary == CANCELED_RUNNING
    assert envelope.output == b""
    assert (await rig.ledger.get(job_id)).failure_reason == ""
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:CODES")
@virtual_time
async def test_every_call_delivered_twice_is_one_cancel(rig: Rig):
    rig.gateway_calls.choose = lambda call: twice
    queued, running = await rig.submit(), ""
    assert (await rig.gateway.cancel(queued, "")).current is C
    running = await rig.running()
    assert (await rig.gateway.cancel(running, "")).current is R
    await rig.report(running)
    await rig.check()


# -- cancel against dequeue ------------------------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:DISPATCH", "tq:LOCK-12")
@pytest.mark.parametrize("point", QUEUED_CANCEL[1:])
@virtual_time
async def test_removed_first_nobody_gets_the_job(rig: Rig, point):
    """The worker asks after the removal: before the answer, the envelope, the status."""
    job_id = await rig.submit()
    got: list[str] = []

    async def ask() -> None:
        got.append((await rig.fetch()).job_id)

    rig.gateway_calls.on(point, then(ask))
    assert (await rig.gateway.cancel(job_id, "")).current is C
    assert got == [""]
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:LOCK-22")
@virtual_time
async def test_dequeued_first_before_the_start_sets_the_flag_and_the_job_ends_canceled(rig: Rig):
    """Remove misses; the flag comes before the Coordinator reads the job: it never starts."""
    job_id = await rig.submit()
    cancels: list[Canceled] = []

    async def cancel() -> None:
        cancels.append(await rig.gateway.cancel(job_id, ""))

    rig.coordinator_calls.on("queue.dequeue", then(cancel))
    assert (await rig.fetch()).job_id == ""
    assert cancels == [Canceled(job_id, True, Q, False)]
    assert called(rig) == ["jobs.get", "queue.remove", "jobs.request_cancel"]
    assert not rig.lines.of(journal.NOT_IN_QUEUE)  # a race, and nobody's fault
    assert (await rig.gateway.status(job_id)).summary.started_at_ms == 0
    assert await rig.status(job_id) is C
    assert await result_status(rig, job_id) is C
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:LOCK-22", "tq:LOCK-39")
@pytest.mark.parametrize(
    ("place", "seen"), [("before", Q), ("after", R)], ids=["before the CAS", "after the CAS"]
)
@virtual_time
async def test_a_flag_around_the_start_lets_the_job_run_and_the_report_ends_it(rig, place, seen):
    job_id = await rig.submit()
    cancels: list[Canceled] = []

    async def cancel() -> None:
        cancels.append(await rig.gateway.cancel(job_id, ""))

    fault = first(cancel) if place == "before" else then(cancel)
    rig.coordinator_calls.on("jobs.transition QUEUED->RUNNING", fault)
    assert (await rig.fetch()).job_id == job_id
    assert cancels == [Canceled(job_id, True, seen, False)]
    assert await rig.report(job_id)
    assert await rig.status(job_id) is C
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:LOCK-22")
@virtual_time
async def test_dequeued_between_the_read_and_the_remove_is_the_running_path(rig: Rig):
    job_id = await rig.submit()
    rig.gateway_calls.on("queue.remove", first(rig.fetch))
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, R, False)
    await rig.report(job_id)
    assert await rig.status(job_id) is C
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL")
@virtual_time
async def test_ended_between_the_read_and_the_flag_is_told_as_it_is(rig: Rig):
    job_id = await rig.running()

    async def finish() -> None:
        await rig.report(job_id)

    rig.gateway_calls.on("jobs.request_cancel", first(finish))
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, D, False)
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL", "tq:LOCK-4")
@virtual_time
async def test_a_cancel_that_lost_the_compare_and_set_to_a_start_asks_the_running_job(rig: Rig):
    """Queued again by a duplicate while it was out of the queue, and started."""
    job_id = await rig.submit(key="k")

    async def again() -> None:
        await rig.submit(key="k")
        assert (await rig.fetch()).job_id == job_id

    rig.gateway_calls.on("jobs.transition QUEUED->CANCELED", first(again))
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, R, False)
    await rig.report(job_id)
    assert await result_status(rig, job_id) is C  # the envelope was there first: it decides
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:NFR-5")
@virtual_time
async def test_a_compare_and_set_lost_while_still_queued_puts_the_job_back(rig: Rig):
    job_id = await rig.submit()
    rig.gateway_calls.on("jobs.transition QUEUED->CANCELED", answers(Applied(False, Q)))
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, Q, False)
    assert len(rig.queue) == 1
    assert rig.lines.of(journal.RESCUE, job_id)
    assert await rig.work_off() == []  # the flag ends it before it starts
    assert await rig.status(job_id) is C
    await rig.check()


@pytest.mark.req("tq:CANCEL")
@virtual_time
async def test_two_cancels_at_once_are_one(rig: Rig):
    job_id = await rig.submit()
    hold = Hold()
    rig.gateway_calls.on("results.store", hold.before)
    one = asyncio.create_task(rig.gateway.cancel(job_id, "a"))
    await hold.reached.wait()
    assert await rig.gateway.cancel(job_id, "b") == Canceled(job_id, True, Q, False)
    hold.release()
    assert await one == Canceled(job_id, True, C, False)
    await rig.check()


# -- calls that fail, answers that are lost --------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:NFR-5", "tq:RETRY")
@pytest.mark.parametrize("error", [Unavailable("x"), DeadlineExceeded("x")], ids=lambda e: e.code)
@pytest.mark.parametrize("happened", [True, False])
@virtual_time
async def test_a_remove_that_is_not_answered_leaves_the_job_in_the_queue(rig, error, happened):
    """The client of the queue service has made its four attempts before."""
    job_id = await rig.submit()
    rig.gateway_calls.on("queue.remove", loses_reply(error) if happened else fails(error))
    with pytest.raises(type(error)):
        await rig.gateway.cancel(job_id, "")
    assert len(rig.gateway_calls.of("queue.remove")) == 1
    assert rig.lines.of(journal.RESCUE, job_id)
    assert len(rig.queue) == 1
    assert await rig.work_off() == [job_id]
    assert await rig.status(job_id) is D
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:CODES")
@virtual_time
async def test_a_remove_that_reached_nobody_changes_nothing_and_is_no_anomaly(rig: Rig):
    job_id = await rig.submit()
    rig.gateway_calls.on("queue.remove", fails(Unreachable("refused")))
    with pytest.raises(Unavailable):
        await rig.gateway.cancel(job_id, "")
    assert called(rig) == ["jobs.get", "queue.remove"]
    assert not rig.lines.anomalies()
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:NFR-5", "tq:TERMINAL", "tq:LOCK-15")
@pytest.mark.parametrize("point", QUEUED_CANCEL[2:])
@pytest.mark.parametrize("fault", [fails(), loses_reply()], ids=["fails", "answer lost"])
@pytest.mark.parametrize("retried", [True, False], ids=["asked again", "left alone"])
@virtual_time
async def test_half_a_cancel_puts_the_job_back_and_it_ends_as_its_envelope_says(
    rig: Rig, point, fault, retried
):
    job_id = await rig.submit()
    rig.gateway_calls.on(point, fault)
    with pytest.raises(Unavailable):
        await rig.gateway.cancel(job_id, "")
    assert rig.lines.of(journal.RESCUE, job_id)
    stored = await rig.shelf.get(job_id)
    if retried:
        assert (await rig.gateway.cancel(job_id, "")).current is C
    await rig.work_off()
    expected = C if retried or stored is not None else D
    assert await rig.status(job_id) is expected
    assert await result_status(rig, job_id) is expected
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL", "tq:LOG")
@virtual_time
async def test_a_queued_job_that_has_a_result_already_is_an_anomaly(rig: Rig):
    job_id = await rig.submit()
    await rig.shelf.store(Envelope(job_id, Status.DONE), request_id=new_request_id())
    assert (await rig.gateway.cancel(job_id, "")).current is Status.CANCELED
    (line,) = rig.lines.of(journal.ANOMALY, job_id)
    assert line.__dict__["current_status"] == "DONE"


@pytest.mark.req("tq:CANCEL", "tq:NFR-5", "tq:LOG")
@virtual_time
async def test_a_job_that_cannot_be_put_back_is_an_anomaly(rig: Rig):
    job_id = await rig.submit(key="k")
    rig.gateway_calls.on("results.store", fails())
    rig.gateway_calls.on("queue.enqueue rescue", fails())
    with pytest.raises(Unavailable):
        await rig.gateway.cancel(job_id, "")
    assert rig.lines.anomalies(job_id)
    assert len(rig.queue) == 0
    await rig.submit(key="k")  # a duplicate finds it QUEUED and queues it again
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:NFR-5")
@virtual_time
async def test_a_job_whose_place_was_taken_meanwhile_is_put_back_all_the_same(lines: Lines):
    rig = Rig(lines, max_queued=1)
    job_id = await rig.submit()
    others: list[str] = []

    async def submit_another() -> None:
        others.append(await rig.submit())

    rig.gateway_calls.on("results.store", first(submit_another))
    rig.gateway_calls.on("jobs.transition QUEUED->CANCELED", fails())
    with pytest.raises(Unavailable):
        await rig.gateway.cancel(job_id, "")
    assert lines.of(journal.RESCUE, job_id)
    assert not lines.anomalies(job_id)
    await rig.work_off()
    assert await rig.status(job_id) is C  # as its envelope says, which was stored
    assert [await rig.status(other) for other in others] == [Status.DONE]
    await rig.check()


@pytest.mark.req("tq:CANCEL")
@pytest.mark.parametrize("fault", [fails(), loses_reply()], ids=["fails", "answer lost"])
@virtual_time
async def test_an_unanswered_flag_can_be_asked_for_again(rig: Rig, fault):
    job_id = await rig.running()
    rig.gateway_calls.on("jobs.request_cancel", fault)
    with pytest.raises(Unavailable):
        await rig.gateway.cancel(job_id, "")
    assert await rig.gateway.cancel(job_id, "") == Canceled(job_id, True, R, False)
    await rig.report(job_id)
    assert await rig.status(job_id) is C
    await rig.check()


# -- the caller leaves -----------------------------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:NFR-5")
@pytest.mark.parametrize("point", QUEUED_CANCEL)
@pytest.mark.parametrize("where", ["before", "after"])
@virtual_time
async def test_a_cancel_whose_caller_left_ends(rig: Rig, point, where):
    job_id = await rig.submit()
    hold = Hold()
    rig.gateway_calls.on(point, getattr(hold, where))
    caller = asyncio.create_task(rig.gateway.cancel(job_id, ""))
    await hold.reached.wait()
    caller.cancel()
    await asyncio.wait([caller])
    hold.release()
    await rig.gateway.stop()
    assert await rig.status(job_id) is C
    await rig.check()


@pytest.mark.req("tq:CANCEL", "tq:NFR-5")
@virtual_time
async def test_a_stop_that_cuts_off_a_cancel_names_the_job(rig: Rig):
    job_id = await rig.submit()
    hold = Hold()
    rig.gateway_calls.on("results.store", hold.before)
    caller = asyncio.create_task(rig.gateway.cancel(job_id, ""))
    await hold.reached.wait()
    await rig.gateway.stop()
    await asyncio.wait([caller])
    assert rig.lines.anomalies(job_id)
