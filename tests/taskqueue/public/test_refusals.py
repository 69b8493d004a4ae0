"""Refusals have the right code, name their field or job, and have no effect."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from jobqueue.pb import taskqueue_public_pb2 as pb
from tests import patience
from tests.taskqueue.public.public import UNKNOWN, Public, job_of, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SERVICE = "/taskqueue.v1.TaskQueuePublicService"
MIB = 1024 * 1024


def _keyed(key: str) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(spec=pb.JobSpec(job_type="any"), client_request_id=key)


# The field that the refusal names, and what is wrong with it.
SUBMITS: list[tuple[str, pb.SubmitJobRequest]] = [
    ("spec", pb.SubmitJobRequest()),
    ("spec", pb.SubmitJobRequest(client_request_id="order")),
    ("spec.job_type", job_of("")),
    ("spec.job_type", job_of("x" * 201)),
    ("spec.job_type", job_of("two\nlines")),
    ("spec.labels", job_of(labels={str(number): "" for number in range(33)})),
    ("spec.labels", job_of(labels={"": "x"})),
    ("spec.labels", job_of(labels={"x" * 256: ""})),
    ("spec.labels", job_of(labels={"x": "y" * 256})),
    ("spec.labels", job_of(labels={"x": "\x00"})),
    ("spec.labels", job_of(labels={"x": "y" * 3 * MIB})),
    ("client_request_id", _keyed("x" * 256)),
    ("client_request_id", _keyed("tab\t")),
]
MALFORMED = ["", "x", "1234", UNKNOWN[:-1], f"{UNKNOWN}0", UNKNOWN.replace("-", ""), "g" * 36]
CALLS: dict[str, Callable[[Public, str], Any]] = {
    "GetJobStatus": lambda tq, job_id: tq.stub(job_id).GetJobStatus(
        pb.GetJobStatusRequest(job_id=job_id)
    ),
    "GetJobResult": lambda tq, job_id: tq.stub(job_id).GetJobResult(
        pb.GetJobResultRequest(job_id=job_id)
    ),
    "CancelJob": lambda tq, job_id: tq.stub(job_id).CancelJob(pb.CancelJobRequest(job_id=job_id)),
}


@pytest.mark.req("tq:NFR-1", "tq:CODES", "tq:FR-1")
async def test_a_submit_that_cannot_be_names_its_field_and_leaves_nothing(tq: Public) -> None:
    for field, request in SUBMITS:
        code, text = await refused(tq.stub(request.client_request_id).SubmitJob(request))
        assert (code, text.partition(":")[0]) == (INVALID, field)
    assert await tq.jobs() == []
    # Nor was the key used up.
    accepted = await tq.stub("order").SubmitJob(_keyed("order"))
    assert [job.job_id for job in await tq.jobs()] == [accepted.job_id]


@pytest.mark.req("tq:NFR-1", "tq:CODES", "tq:LOCK-19")
async def test_an_unknown_job_is_not_found(tq: Public) -> None:
    for call in CALLS.values():
        code, text = await refused(call(tq, UNKNOWN))
        assert code is grpc.StatusCode.NOT_FOUND
        assert UNKNOWN in text


@pytest.mark.req("tq:NFR-1", "tq:CODES", "tq:LOCK-35")
async def test_what_is_no_id_is_an_invalid_argument(tq: Public) -> None:
    for call in CALLS.values():
        for job_id in MALFORMED:
            code, text = await refused(call(tq, job_id))
            assert code is INVALID
            assert text.startswith("job_id: ")


@pytest.mark.req("tq:CODES", "tq:CANCEL")
async def test_a_reason_that_is_too_long_cancels_nothing(held: Public) -> None:
    job_id = (await held.client.submit_job(job_type="any")).job_id
    request = pb.CancelJobRequest(job_id=job_id, reason="x" * 1_001)
    code, text = await refused(held.stub(job_id).CancelJob(request))
    assert code is INVALID
    assert text.startswith("reason: ")
    status = await held.stub(job_id).GetJobStatus(pb.GetJobStatusRequest(job_id=job_id))
    assert (status.status, status.cancel_requested) == (pb.QUEUED, False)
    request.reason = "ü\n" * 500
    assert (await held.stub(job_id).CancelJob(request)).current_status == pb.CANCELED


@pytest.mark.req("tq:NFR-1", "tq:CODES")
async def test_a_method_that_is_not_there_is_unimplemented(tq: Public) -> None:
    for path in (f"{SERVICE}/PauseJob", "/taskqueue.v2.TaskQueuePublicService/SubmitJob"):
        code, _ = await refused(_plain(tq, path, b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.req("tq:NFR-1", "tq:CODES")
async def test_bytes_that_are_no_message_have_no_effect(tq: Public) -> None:
    code, _ = await refused(_plain(tq, f"{SERVICE}/SubmitJob", b"\xff\xff\xff"))
    assert code is INVALID
    assert await tq.jobs() == []


@pytest.mark.req("tq:NFR-1", "tq:DEADLINE", "tq:DEDUP", "tq:CODES")
async def test_a_deadline_is_kept_and_a_key_tells_what_became_of_the_job(held: Public) -> None:
    """Cut off at any moment, a submit ends as told; made again, it is the same one job."""
    before = len(await held.jobs())
    request = _keyed("order")
    late = held.stub("order").SubmitJob(request, timeout=0.01)
    time.sleep(0.02)  # nobody on this loop goes on, the servers among them
    ends = [(await refused(late))[0]]
    ends += [await _end_within(held, request, ms / 1000) for ms in (0.1, 0.5, 1, 2, 3, 5, 8)]
    # A gateway that has no time left to enqueue undoes the submit and says UNAVAILABLE: either
    # way the caller may ask again, and does not know more.
    assert set(ends) <= {
        grpc.StatusCode.OK,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    }
    first, again = [await held.stub("order").SubmitJob(request) for _ in range(2)]
    assert first.job_id == again.job_id
    assert len(await held.jobs()) == before + 1
    assert (await held.client.cancel_job(first.job_id)).accepted


async def _end_within(tq: Public, request: pb.SubmitJobRequest, seconds: float) -> grpc.StatusCode:
    try:
        await tq.stub(request.client_request_id).SubmitJob(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _plain(tq: Public, path: str, message: bytes) -> Awaitable[bytes]:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = tq.channels[0].unary_unary(path)
    return call(message, timeout=patience.longest(20))
