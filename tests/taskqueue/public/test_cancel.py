"""Cancel: queued, running, ended, unknown."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.taskqueue import Canceled, JobResult, JobStatus
from tests import patience
from tests.taskqueue.public.public import Public

EMPTY_CHECKSUM = hashlib.sha256(b"").hexdigest()


def _ended(job_id: str, status: JobStatus = JobStatus.CANCELED) -> Canceled:
    """The answer to a cancel that came after the end."""
    return Canceled(job_id, accepted=True, current=status, already_terminal=True)


@pytest.mark.req("tq:NFR-1", "tq:FR-4", "tq:CANCEL", "tq:CODES")
async def test_a_queued_job_is_canceled_at_once(held: Public) -> None:
    job_id = (await held.client.submit_job(job_type="any", payload_size_bytes=9)).job_id
    answer = await held.stub(job_id).CancelJob(pb.CancelJobRequest(job_id=job_id, reason="enough"))
    assert answer == pb.CancelJobResponse(
        job_id=job_id, accepted=True, current_status=pb.CANCELED, already_terminal=False
    )
    assert await held.client.get_job_result(job_id) == JobResult(
        job_id, JobStatus.CANCELED, 0, "canceled before it started", b"", EMPTY_CHECKSUM
    )
    state = await held.client.get_job_status(job_id)
    assert state.status is JobStatus.CANCELED
    assert (state.started_at_ms, state.cancel_requested, state.failure_reason) == (0, False, "")
    assert 0 < state.created_at_ms <= state.finished_at_ms
    for _ in range(2):
        assert await held.client.cancel_job(job_id, "again") == _ended(job_id)
    assert await held.client.get_job_status(job_id) == state


@pytest.mark.req("tq:FR-2", "tq:FR-4", "tq:CANCEL", "tq:LOCK-39")
async def test_a_running_job_is_asked_and_goes_on(tq: Public) -> None:
    (job_id, *_) = await tq.hold()
    before = await tq.client.get_job_status(job_id)
    for _ in range(2):
        answer = await tq.client.cancel_job(job_id, "enough")
        assert answer == Canceled(job_id, True, JobStatus.RUNNING, already_terminal=False)
        after = await tq.client.get_job_status(job_id)
        assert (after.status, after.cancel_requested) == (JobStatus.RUNNING, True)
        assert (after.started_at_ms, after.finished_at_ms) == (before.started_at_ms, 0)
        assert await tq.client.get_job_result(job_id) is None
    (listed,) = [job for job in await tq.jobs() if job.job_id == job_id]
    assert listed.cancel_requested


@pytest.mark.parametrize("job_type", ["any", "fail"])
@pytest.mark.req("tq:NFR-1", "tq:FR-4", "tq:CANCEL", "tq:LOCK-39", "tq:RESULT")
async def test_a_running_job_that_was_asked_ends_canceled(tq: Public, job_type: str) -> None:
    job_id, duration = await _asked_while_running(tq, job_type)
    result = await tq.end(job_id)
    assert (result.status, result.output) == (JobStatus.CANCELED, b"")
    assert (result.output_summary, result.checksum) == ("canceled while it ran", EMPTY_CHECKSUM)
    assert result.runtime_ms >= duration  # nothing interrupted it
    state = await tq.client.get_job_status(job_id)
    assert (state.status, state.cancel_requested) == (JobStatus.CANCELED, True)
    assert state.failure_reason == ""
    assert 0 < state.created_at_ms <= state.started_at_ms <= state.finished_at_ms
    assert await tq.client.cancel_job(job_id) == _ended(job_id)


async def _asked_while_running(tq: Public, job_type: str) -> tuple[str, int]:
    """A job, and how long it takes. If it has ended before it could be asked: a longer one."""
    for duration in (300, 1_500, 7_500):
        submitted = await tq.client.submit_job(
            job_type=job_type, work_duration_ms=duration, payload_size_bytes=10
        )
        job_id = submitted.job_id
        while (await tq.client.get_job_status(job_id)).status is JobStatus.QUEUED:
            await asyncio.sleep(0.005)
        answer = await tq.client.cancel_job(job_id, "enough")
        if not answer.already_terminal:
            assert answer == Canceled(job_id, True, JobStatus.RUNNING, already_terminal=False)
            return job_id, duration
    raise AssertionError("no job ran for so long that it could be asked")


@pytest.mark.req("tq:NFR-1", "tq:CANCEL", "tq:CODES", "tq:LOCK-4")
async def test_what_has_ended_stays_as_it_ended(tq: Public) -> None:
    for job_type, status in (("any", JobStatus.DONE), ("fail", JobStatus.FAILED)):
        job_id = (await tq.client.submit_job(job_type=job_type)).job_id
        result = await tq.end(job_id)
        state = await tq.client.get_job_status(job_id)
        for _ in range(2):
            assert await tq.client.cancel_job(job_id, "too late") == _ended(job_id, status)
        assert await tq.client.get_job_result(job_id) == result
        assert await tq.client.get_job_status(job_id) == state


@pytest.mark.req("tq:CANCEL", "tq:LOCK-22")
async def test_many_cancels_at_once_are_one(held: Public) -> None:
    job_id = (await held.client.submit_job(job_type="any")).job_id
    answers = await asyncio.gather(*(held.client.cancel_job(job_id) for _ in range(20)))
    assert all(answer.accepted for answer in answers)
    # One that finds it gone from the queue, and not canceled yet, says what it sees.
    assert {answer.current for answer in answers} <= {JobStatus.QUEUED, JobStatus.CANCELED}
    assert (await held.end(job_id)).output_summary == "canceled before it started"
    assert await held.client.cancel_job(job_id) == _ended(job_id)


@pytest.mark.req("tq:CANCEL", "tq:DISPATCH")
async def test_what_was_canceled_is_not_run_when_a_slot_is_free(tq: Public) -> None:
    duration = round(1_000 * patience.stretched(1.5))
    busy = [
        (await tq.client.submit_job(job_type="busy", work_duration_ms=duration)).job_id
        for _ in range(6)
    ]
    jobs = [(await tq.client.submit_job(job_type="any")).job_id for _ in range(12)]
    canceled = {
        job_id
        for job_id in jobs[::2]
        if (await tq.client.cancel_job(job_id)).current is JobStatus.CANCELED
    }
    assert canceled  # on a busy machine a slot may be free before the last of them
    for job_id in (*busy, *jobs[1::2], *canceled):
        status = (await tq.end(job_id)).status
        assert status is (JobStatus.CANCELED if job_id in canceled else JobStatus.DONE)
    for job_id in canceled:
        assert (await tq.client.get_job_status(job_id)).started_at_ms == 0
