"""A submit with ``client_request_id`` may be made again, and is one job."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from jobqueue.core.errors import KeyConflict
from jobqueue.pb import taskqueue_public_pb2 as pb
from jobqueue.taskqueue import JobSpec, JobStatus, Submitted
from tests.taskqueue.public.public import Public, refused

SPEC = JobSpec("any", 10, 20, {"a": "1", "b": "2", "c": ""})
OTHERS = [
    replace(SPEC, job_type="other"),
    replace(SPEC, work_duration_ms=11),
    replace(SPEC, payload_size_bytes=21),
    replace(SPEC, labels={"a": "1", "b": "2"}),
    replace(SPEC, labels={"a": "2", "b": "1", "c": ""}),
    replace(SPEC, labels={}),
]


@pytest.mark.req("tq:NFR-1", "tq:DEDUP", "tq:INGRESS", "tq:LOCK-36", "tq:LOCK-38", "tq:CODES")
async def test_a_key_is_one_job_and_one_spec(held: Public) -> None:
    before = {job.job_id for job in await held.jobs()}
    ids = set()
    for key in ("order-1", "order-2", "order-3"):
        first = await held.client.submit_job(SPEC, client_request_id=key)
        turned = replace(SPEC, labels=dict(reversed(list(SPEC.labels.items()))))
        for spec in (SPEC, turned, SPEC):
            again = await held.client.submit_job(spec, client_request_id=key)
            assert again.job_id == first.job_id
            assert again.accepted_at_ms >= first.accepted_at_ms
        for other in OTHERS:
            with pytest.raises(KeyConflict):
                await held.client.submit_job(other, client_request_id=key)
        ids.add(first.job_id)
    assert len(ids) == 3
    assert {job.job_id for job in await held.jobs()} - before == ids


@pytest.mark.req("tq:DEDUP", "tq:CODES")
async def test_another_spec_is_a_failed_precondition_on_the_wire(held: Public) -> None:
    request = pb.SubmitJobRequest(spec=pb.JobSpec(job_type="any"), client_request_id="order")
    accepted = await held.stub("order").SubmitJob(request)
    assert (await held.stub("order").SubmitJob(request)).job_id == accepted.job_id
    request.spec.job_type = "other"
    assert await refused(held.stub("order").SubmitJob(request)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "client_request_id: already used for a job with another spec; use a new id",
    )


@pytest.mark.req("tq:DEDUP", "tq:LOCK-14")
async def test_without_a_key_every_submit_is_a_new_job(held: Public) -> None:
    before = len(await held.jobs())
    submitted = [await held.client.submit_job(SPEC) for _ in range(5)]
    assert len({one.job_id for one in submitted}) == 5
    assert len(await held.jobs()) == before + 5


@pytest.mark.req("tq:DEDUP", "tq:CODES")
async def test_a_key_outlives_its_job(tq: Public) -> None:
    for number, job_type in enumerate(("any", "fail")):
        key = f"order-{number}"
        first = await tq.client.submit_job(job_type=job_type, client_request_id=key)
        await tq.end(first.job_id)
        state = await tq.client.get_job_status(first.job_id)
        again = await tq.stub(key).SubmitJob(
            pb.SubmitJobRequest(spec=pb.JobSpec(job_type=job_type), client_request_id=key)
        )
        assert (again.job_id, again.initial_status) == (first.job_id, pb.QUEUED)
        assert await tq.client.get_job_status(first.job_id) == state
    assert len(await tq.jobs()) == 2


@pytest.mark.req("tq:DEDUP", "tq:CANCEL")
async def test_a_key_outlives_the_cancel_of_its_job(held: Public) -> None:
    first = await held.client.submit_job(SPEC, client_request_id="order")
    await held.client.cancel_job(first.job_id)
    again = await held.client.submit_job(SPEC, client_request_id="order")
    assert again.job_id == first.job_id
    assert (await held.client.get_job_status(first.job_id)).status is JobStatus.CANCELED


@pytest.mark.req("tq:DEDUP", "tq:NFR-1")
async def test_twenty_at_once_with_one_key_are_one_job(held: Public) -> None:
    before = {job.job_id for job in await held.jobs()}
    submitted = await asyncio.gather(
        *(held.client.submit_job(SPEC, client_request_id="order") for _ in range(20))
    )
    (job_id,) = {one.job_id for one in submitted}
    assert {job.job_id for job in await held.jobs()} - before == {job_id}


@pytest.mark.req("tq:DEDUP", "tq:NFR-1")
async def test_of_two_specs_at_once_with_one_key_one_is_the_job(held: Public) -> None:
    before = {job.job_id for job in await held.jobs()}

    async def submit(number: int) -> Submitted | None:
        try:
            return await held.client.submit_job(
                job_type=f"kind-{number % 2}", client_request_id="order"
            )
        except KeyConflict:
            return None

    answers = await asyncio.gather(*(submit(number) for number in range(20)))
    (job,) = [job for job in await held.jobs() if job.job_id not in before]
    won = int(job.job_type.removeprefix("kind-"))
    for number, answer in enumerate(answers):
        assert (answer is not None) == (number % 2 == won)
        assert answer is None or answer.job_id == job.job_id


@pytest.mark.req("tq:INGRESS", "tq:NFR-1", "tq:LOCK-27", "tq:LOCK-37", "tq:LOCK-38")
async def test_what_was_submitted_with_or_without_a_key_is_found_by_its_id(held: Public) -> None:
    for number in range(12):
        key = f"order-{number}" if number % 2 else ""
        job_id = (await held.client.submit_job(SPEC, client_request_id=key)).job_id
        answer = await held.stub(job_id).GetJobStatus(pb.GetJobStatusRequest(job_id=job_id))
        assert (answer.job_id, answer.status) == (job_id, pb.QUEUED)
