"""From the submit to the result."""

from __future__ import annotations

import hashlib
import time

import grpc
import grpc.aio
import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.taskqueue import JobSpec, JobStatus
from tests.taskqueue.public.public import VERY_LONG_MS, Public, job_of

CAP = 262_144
EMPTY_CHECKSUM = hashlib.sha256(b"").hexdigest()


def _now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.req("tq:NFR-1", "tq:FR-1", "tq:FR-2", "tq:FR-3", "tq:RESULT", "tq:LOCK-8")
async def test_a_job_is_queued_and_done(tq: Public) -> None:
    before = _now_ms()
    accepted = await tq.stub().SubmitJob(
        job_of(work_duration_ms=40, payload_size_bytes=1_000, labels={"a": "b"})
    )
    after = _now_ms()
    assert accepted.initial_status == pb.QUEUED
    assert before <= accepted.accepted_at_ms <= after
    job_id = accepted.job_id

    result = await tq.end(job_id)
    assert (result.job_id, result.status) == (job_id, JobStatus.DONE)
    assert result.output == b"x" * 1_000
    assert result.output_summary == "1000 bytes of output"
    assert result.checksum == hashlib.sha256(b"x" * 1_000).hexdigest()
    assert 40 <= result.runtime_ms <= _now_ms() - before

    state = await tq.client.get_job_status(job_id)
    assert (state.job_id, state.status) == (job_id, JobStatus.DONE)
    assert (state.cancel_requested, state.failure_reason) == (False, "")
    assert before <= state.created_at_ms <= accepted.accepted_at_ms
    assert state.created_at_ms <= state.started_at_ms
    assert state.started_at_ms + 40 <= state.finished_at_ms <= _now_ms()
    assert await tq.client.get_job_status(job_id) == state
    assert await tq.client.get_job_result(job_id) == result


@pytest.mark.req("tq:FR-2", "tq:FR-3", "tq:RESULT", "tq:CODES")
async def test_before_the_end_there_is_no_result(tq: Public) -> None:
    (running, *_) = await tq.hold()
    queued = (await tq.client.submit_job(job_type="any", payload_size_bytes=5)).job_id
    for job_id, status in ((running, JobStatus.RUNNING), (queued, JobStatus.QUEUED)):
        answer = await tq.stub(job_id).GetJobResult(pb.GetJobResultRequest(job_id=job_id))
        assert answer == pb.GetJobResultResponse(job_id=job_id)  # not ready, and nothing else
        state = await tq.client.get_job_status(job_id)
        assert (state.status, state.finished_at_ms, state.failure_reason) == (status, 0, "")
        assert state.created_at_ms > 0
        started = state.started_at_ms
        assert started >= state.created_at_ms if status is JobStatus.RUNNING else started == 0


ENDS = [
    # spec, how it ends, size of the output, what is said of it
    (JobSpec("any"), JobStatus.DONE, 0, "0 bytes of output"),
    (JobSpec("fail", 20, 7), JobStatus.FAILED, 0, "failed on purpose"),
    (JobSpec("any", 0, CAP), JobStatus.DONE, CAP, f"{CAP} bytes of output"),
    (JobSpec("any", 0, CAP + 1), JobStatus.FAILED, 0, "OUTPUT_TOO_LARGE"),
    (JobSpec("any", 0, 2**32 - 1), JobStatus.FAILED, 0, "OUTPUT_TOO_LARGE"),
]


@pytest.mark.req("tq:NFR-1", "tq:FR-2", "tq:FR-3", "tq:RESULT", "tq:LOCK-18")
async def test_every_end_has_its_envelope(tq: Public) -> None:
    submitted = [(await tq.client.submit_job(spec)).job_id for spec, *_ in ENDS]
    for job_id, (spec, status, size, said) in zip(submitted, ENDS, strict=True):
        result = await tq.end(job_id)
        assert (result.status, result.output) == (status, b"x" * size)
        assert result.checksum == hashlib.sha256(b"x" * size).hexdigest()
        assert result.output_summary.startswith(said)
        assert result.runtime_ms >= spec.work_duration_ms
        state = await tq.client.get_job_status(job_id)
        assert state.status is status
        assert state.failure_reason == ("" if status is JobStatus.DONE else result.output_summary)
        assert 0 < state.created_at_ms <= state.started_at_ms <= state.finished_at_ms


@pytest.mark.req("tq:NFR-1", "tq:RESULT")
async def test_an_oversized_output_is_told_in_the_same_words(tq: Public) -> None:
    job_id = (await tq.client.submit_job(job_type="any", payload_size_bytes=300_000)).job_id
    result = await tq.end(job_id)
    assert (
        result.output_summary == "OUTPUT_TOO_LARGE: 300000 bytes of output, at most 262144 are kept"
    )
    assert result.checksum == EMPTY_CHECKSUM


@pytest.mark.req("tq:FR-1", "tq:LOCK-35", "tq:LOCK-14")
async def test_ids_are_uuids_of_version_4_and_no_other_spelling_finds_them(tq: Public) -> None:
    await tq.hold()
    ids = [(await tq.client.submit_job(job_type="any")).job_id for _ in range(12)]
    assert len(set(ids)) == 12
    for job_id in ids:
        assert job_id == job_id.lower()
        assert job_id[14] == "4"
        assert job_id[19] in "89ab"
        assert (await tq.client.get_job_status(job_id)).job_id == job_id
    for other in (ids[0].upper(), f" {ids[0]}", f"{ids[0]}\n"):
        with pytest.raises(InvalidArgument, match=r"job_id: .* is not a UUID in lower case"):
            await tq.client.get_job_status(other)
        for method, request in (
            ("GetJobStatus", pb.GetJobStatusRequest),
            ("GetJobResult", pb.GetJobResultRequest),
            ("CancelJob", pb.CancelJobRequest),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(tq.stub(other), method)(request(job_id=other))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.req("tq:NFR-1", "tq:FR-1")
async def test_what_is_allowed_is_accepted_to_its_last_character(tq: Public) -> None:
    await tq.hold()
    text = "grösse 漢字 🙂 " + "x" * 300
    labels = {f"{number:02}{text}"[:255]: text[:255] for number in range(32)}
    spec = JobSpec(text[:200], VERY_LONG_MS, 2**32 - 1, {**labels, next(iter(labels)): ""})
    key = f"🗝 {text}"[:255]
    first = await tq.client.submit_job(spec, client_request_id=key)
    again = await tq.client.submit_job(spec, client_request_id=key)
    assert first.job_id == again.job_id
    (listed,) = [job for job in await tq.jobs() if job.job_id == first.job_id]
    assert listed.job_type == text[:200]
