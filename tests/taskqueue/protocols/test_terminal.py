"""The end of a job: two terminal writes in each order, reports repeated, late, unanswered."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.taskqueue.components.coordinator import NO_REASON
from jobqueue.taskqueue.components.model import (
    MAX_OUTPUT_BYTES,
    MAX_SUMMARY,
    OUTPUT_TOO_LARGE,
    Actor,
    Envelope,
    Report,
    Status,
    WorkOutcome,
    checksum,
)
from jobqueue.taskqueue.components.protocols import new_request_id
from tests.taskqueue.protocols.faulty import Hold, fails, first, loses_reply, then, twice
from tests.taskqueue.protocols.rig import WORKER, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time

ENDS = {
    WorkOutcome.SUCCEEDED: Status.DONE,
    WorkOutcome.FAILED: Status.FAILED,
    WorkOutcome.CANCELED: Status.CANCELED,
}
outcomes = pytest.mark.parametrize("outcome", WorkOutcome, ids=lambda outcome: outcome.name)
pairs = pytest.mark.parametrize(
    ("one", "two"),
    list(itertools.permutations(WorkOutcome, 2)),
    ids=lambda outcome: outcome.name,
)


def end_point(outcome: WorkOutcome) -> str:
    return f"jobs.transition RUNNING->{ENDS[outcome].name}"


async def kept(rig: Rig, job_id: str) -> Envelope:
    envelope = await rig.gateway.result(job_id)
    assert envelope is not None
    return envelope


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-15", "tq:FR-3", "tq:RESULT")
@outcomes
@virtual_time
async def test_the_envelope_comes_before_the_status(rig: Rig, outcome):
    job_id = await rig.running()
    rig.coordinator_calls.calls.clear()
    assert await rig.report(job_id, outcome)
    points = [call.point for call in rig.coordinator_calls.calls]
    assert points == ["jobs.get", "results.store", end_point(outcome)]
    envelope = await kept(rig, job_id)
    assert envelope.status is ENDS[outcome]
    assert envelope.runtime_ms == 7
    assert envelope.checksum == checksum(envelope.output)
    assert envelope.output_summary
    assert (envelope.output == b"out") is (outcome is WorkOutcome.SUCCEEDED)
    reason = (await rig.ledger.get(job_id)).failure_reason
    assert reason == ("boom" if outcome is WorkOutcome.FAILED else "")
    await rig.check()


@pytest.mark.req("tq:RESULT")
@virtual_time
async def test_a_failure_always_has_a_context_of_bounded_length(rig: Rig):
    for given, shown in (("", NO_REASON), ("x" * 10_000, "x" * MAX_SUMMARY)):
        job_id = await rig.running()
        report = Report(WORKER, job_id, WorkOutcome.FAILED, failure_reason=given)
        assert await rig.coordination.report(report, request_id=new_request_id())
        assert (await kept(rig, job_id)).output_summary == shown
        assert (await rig.ledger.get(job_id)).failure_reason == shown


@pytest.mark.req("tq:RESULT", "tq:LOCK-18", "tq:TERMINAL")
@virtual_time
async def test_an_output_over_the_cap_is_a_failure_in_status_and_result(rig: Rig):
    job_id = await rig.running()
    assert await rig.report(job_id, output=b"x" * (MAX_OUTPUT_BYTES + 1))
    envelope = await kept(rig, job_id)
    assert envelope.status is Status.FAILED
    assert envelope.output == b""
    assert envelope.output_summary.startswith(OUTPUT_TOO_LARGE)
    assert (await rig.ledger.get(job_id)).failure_reason == OUTPUT_TOO_LARGE
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:CODES")
@outcomes
@virtual_time
async def test_every_call_delivered_twice_is_one_end(rig: Rig, outcome):
    rig.coordinator_calls.choose = lambda call: twice
    rig.worker_calls.choose = lambda call: twice
    job_id = await rig.running()
    assert await rig.report(job_id, outcome)
    await rig.check()


# -- two terminal writes ---------------------------------------------------------------------------


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-4")
@pairs
@virtual_time
async def test_a_later_conflicting_report_is_refused_and_logged(rig: Rig, one, two):
    job_id = await rig.running()
    assert await rig.report(job_id, one)
    before = (await rig.ledger.get(job_id), await kept(rig, job_id))
    assert not await rig.report(job_id, two)
    assert (await rig.ledger.get(job_id), await kept(rig, job_id)) == before
    assert rig.lines.of("report_ignored", job_id)
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:CODES")
@outcomes
@virtual_time
async def test_an_equal_report_under_another_id_is_confirmed(rig: Rig, outcome):
    job_id = await rig.running()
    assert await rig.report(job_id, outcome)
    assert await rig.report(job_id, outcome)
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-4", "tq:LOCK-29", "tq:LOCK-15")
@pairs
@pytest.mark.parametrize("place", ["store", "status"])
@virtual_time
async def test_two_reports_at_once_end_the_job_as_the_first_envelope_says(rig, one, two, place):
    """The second overtakes the first: before its envelope is stored, or between the two steps."""
    job_id = await rig.running()
    second: list[bool] = []

    async def overtake() -> None:
        second.append(await rig.report(job_id, two))

    point = "results.store" if place == "store" else end_point(one)
    rig.coordinator_calls.on(point, first(overtake))
    accepted = await rig.report(job_id, one)
    winner = two if place == "store" else one
    assert await rig.status(job_id) is ENDS[winner]
    assert (await kept(rig, job_id)).status is ENDS[winner]
    assert (accepted, second) == (winner is one, [winner is two])
    assert rig.lines.of("result_conflict", job_id)
    await rig.check()


@pytest.mark.req("tq:TERMINAL")
@virtual_time
async def test_a_report_that_finds_a_failure_does_not_make_up_its_reason(rig: Rig):
    job_id = await rig.running()

    async def fail() -> None:
        await rig.shelf.store(Envelope(job_id, Status.FAILED, output_summary="boom"), request_id="")

    rig.coordinator_calls.on("results.store", first(fail))
    assert not await rig.report(job_id)
    record = await rig.ledger.get(job_id)
    assert record.summary.status is Status.FAILED
    assert OUTPUT_TOO_LARGE not in record.failure_reason
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-4", "tq:LOCK-15")
@virtual_time
async def test_a_status_that_came_first_stays_though_the_envelope_is_another(rig: Rig):
    """Only a part that breaks the order of the protocol could do that: it is shown, not hidden."""
    job_id = await rig.running()

    async def end() -> None:
        await rig.ledger.transition(
            job_id, Status.RUNNING, Status.FAILED, actor=Actor.COORDINATOR, request_id=""
        )

    rig.coordinator_calls.on("results.store", then(end))
    await rig.report(job_id)
    assert await rig.status(job_id) is Status.FAILED
    assert rig.lines.of("terminal_race", job_id)[0].levelname == "WARNING"
    with pytest.raises(Unavailable):
        await rig.gateway.result(job_id)
    assert rig.lines.anomalies(job_id)


@pytest.mark.req("tq:CANCEL", "tq:TERMINAL", "tq:LOCK-39")
@pytest.mark.parametrize(
    ("point", "wins"),
    [("jobs.get", True), ("results.store", False), (end_point(WorkOutcome.SUCCEEDED), False)],
)
@virtual_time
async def test_a_cancel_wins_if_it_is_recorded_before_the_report_is_looked_at(rig, point, wins):
    job_id = await rig.running()
    rig.coordinator_calls.on(point, first(lambda: rig.gateway.cancel(job_id, "")))
    assert await rig.report(job_id)
    assert await rig.status(job_id) is (Status.CANCELED if wins else Status.DONE)
    await rig.check()


# -- who may report --------------------------------------------------------------------------------


@pytest.mark.req("tq:TERMINAL")
@virtual_time
async def test_a_report_of_a_worker_that_was_not_given_the_job_is_ignored(rig: Rig):
    job_id = await rig.running()
    assert not await rig.report(job_id, worker_id="another")
    assert await rig.status(job_id) is Status.RUNNING
    assert rig.lines.of("report_ignored", job_id)
    assert await rig.report(job_id)
    await rig.check()


@pytest.mark.req("tq:TERMINAL")
@virtual_time
async def test_a_report_of_a_job_that_does_not_run_is_ignored(rig: Rig):
    job_id = await rig.submit()
    assert not await rig.report(job_id)
    assert await rig.status(job_id) is Status.QUEUED
    assert await rig.shelf.get(job_id) is None
    assert await rig.work_off() == [job_id]
    await rig.check()


@pytest.mark.req("tq:CODES")
@virtual_time
async def test_a_report_of_an_unknown_job_is_not_found(rig: Rig):
    with pytest.raises(NotFound):
        await rig.report("gone")


@pytest.mark.req("tq:TERMINAL", "tq:NFR-5")
@virtual_time
async def test_a_coordinator_that_started_anew_takes_the_report_of_a_job_it_did_not_give(rig: Rig):
    job_id = await rig.running()
    rig.new_coordinator()
    assert await rig.report(job_id)
    await rig.check()


# -- calls that fail, answers that are lost --------------------------------------------------------


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-15", "tq:NFR-5")
@outcomes
@pytest.mark.parametrize("step", ["jobs.get", "results.store", "end"])
@pytest.mark.parametrize("fault", [fails(), loses_reply()], ids=["fails", "answer lost"])
@pytest.mark.parametrize("same_id", [True, False])
@virtual_time
async def test_a_report_is_made_again_after_any_failure(rig, outcome, step, fault, same_id):
    job_id = await rig.running()
    rig.coordinator_calls.on(end_point(outcome) if step == "end" else step, fault)
    with pytest.raises(Unavailable):
        await rig.report(job_id, outcome, request_id="r")
    assert await rig.report(job_id, outcome, request_id="r" if same_id else "s")
    assert await rig.status(job_id) is ENDS[outcome]
    assert not rig.lines.of("result_conflict")
    await rig.check()


@pytest.mark.req("tq:TERMINAL")
@outcomes
@virtual_time
async def test_a_report_whose_answer_was_lost_is_answered_the_same_again(rig: Rig, outcome):
    job_id = await rig.running()
    rig.worker_calls.on("coordination.report", loses_reply())
    with pytest.raises(Unavailable):
        await rig.report(job_id, outcome, request_id="r")
    calls = len(rig.coordinator_calls.calls)
    assert await rig.report(job_id, outcome, request_id="r")
    assert len(rig.coordinator_calls.calls) == calls
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:RESULT", "tq:LOCK-15")
@virtual_time
async def test_an_envelope_without_its_status_is_not_shown(rig: Rig):
    """The canonical status decides, not what lies on the shelf."""
    job_id = await rig.running()
    rig.coordinator_calls.on(end_point(WorkOutcome.SUCCEEDED), fails())
    with pytest.raises(Unavailable):
        await rig.report(job_id)
    assert await rig.shelf.get(job_id) is not None
    assert await rig.gateway.result(job_id) is None
    assert (await rig.gateway.status(job_id)).summary.status is Status.RUNNING
    await rig.report(job_id)
    assert (await kept(rig, job_id)).output == b"out"
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:CANCEL")
@virtual_time
async def test_a_cancel_between_a_stored_envelope_and_its_status_comes_too_late(rig: Rig):
    job_id = await rig.running()
    rig.coordinator_calls.on(end_point(WorkOutcome.SUCCEEDED), fails())
    with pytest.raises(Unavailable):
        await rig.report(job_id)
    await rig.gateway.cancel(job_id, "")
    assert await rig.report(job_id)  # it has ended as this says
    assert await rig.status(job_id) is Status.DONE
    await rig.check()


@pytest.mark.req("tq:TERMINAL", "tq:RESULT", "tq:LOCK-23", "tq:CODES", "tq:LOG")
@virtual_time
async def test_an_end_without_an_envelope_is_unavailable_and_an_anomaly(rig: Rig):
    job_id = await rig.running()
    await rig.ledger.transition(
        job_id, Status.RUNNING, Status.DONE, actor=Actor.COORDINATOR, request_id=""
    )
    for times in (1, 2):
        with pytest.raises(Unavailable):
            await rig.gateway.result(job_id)
        assert len(rig.lines.anomalies(job_id)) == times
    assert (await rig.gateway.status(job_id)).summary.status is Status.DONE


@pytest.mark.req("tq:RESULT", "tq:FR-3", "tq:FR-2")
@virtual_time
async def test_a_job_that_has_not_ended_has_no_result_and_its_shelf_is_not_asked(rig: Rig):
    job_id = await rig.submit()
    assert await rig.gateway.result(job_id) is None
    assert (await rig.gateway.status(job_id)).summary.status is Status.QUEUED
    await rig.fetch()
    assert await rig.gateway.result(job_id) is None
    assert not rig.gateway_calls.of("results.get")
    await rig.report(job_id)
    assert (await kept(rig, job_id)).output == b"out"


@pytest.mark.req("tq:CODES")
@virtual_time
async def test_reads_of_an_unknown_job_are_not_found(rig: Rig):
    for read in (rig.gateway.status, rig.gateway.result):
        with pytest.raises(NotFound):
            await read("gone")


@pytest.mark.req("tq:CODES", "tq:RESULT")
@pytest.mark.parametrize("point", ["jobs.get", "results.get"])
@virtual_time
async def test_a_result_that_cannot_be_read_now_is_unavailable_and_no_anomaly(rig: Rig, point):
    job_id = await rig.running()
    await rig.report(job_id)
    rig.gateway_calls.on(point, fails())
    with pytest.raises(Unavailable):
        await rig.gateway.result(job_id)
    assert not rig.lines.anomalies()
    assert (await kept(rig, job_id)).status is Status.DONE


# -- the caller leaves -----------------------------------------------------------------------------


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-15")
@pytest.mark.parametrize("step", ["jobs.get", "results.store", end_point(WorkOutcome.SUCCEEDED)])
@pytest.mark.parametrize("where", ["before", "after"])
@virtual_time
async def test_a_report_whose_worker_left_ends_the_job(rig: Rig, step, where):
    job_id = await rig.running()
    hold = Hold()
    rig.coordinator_calls.on(step, getattr(hold, where))
    caller = asyncio.create_task(rig.report(job_id))
    await hold.reached.wait()
    caller.cancel()
    await asyncio.wait([caller])
    hold.release()
    await rig.coordinator.stop()
    assert await rig.status(job_id) is Status.DONE
    await rig.check()
