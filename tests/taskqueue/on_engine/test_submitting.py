"""Submit: the job in the store, the queue that is made for it, keys."""

from __future__ import annotations

import asyncio
import json

import pytest

from jobqueue.core.errors import InvalidArgument, KeyConflict, NotFound, RateLimited
from jobqueue.core.job import JobSpec, SubmitResult
from jobqueue.core.queue import QueueSpec
from jobqueue.engine.engine import Engine
from jobqueue.taskqueue.components.model import Listing, Spec, Status
from jobqueue.taskqueue.engine_job import QUEUE, RECOVERIES, TYPE, to_job, to_spec
from jobqueue.taskqueue.on_engine import EngineTaskQueue

SPEC = Spec("resize", 5, 7, {"b": "2", "a": "ä"})


@pytest.mark.req("tq:SUBMIT", "tq:FR-1")
async def test_a_job_is_kept_in_a_queue_of_its_own(engine: Engine, tasks: EngineTaskQueue):
    submitted = await tasks.submit(SPEC, "k")
    job = await engine.get(submitted.job_id)
    assert (job.queue, job.type, job.max_retries, job.priority) == (
        QUEUE,
        TYPE,
        RECOVERIES,
        0,
    )
    assert (job.key, job.labels) == ("k", {"a": "ä", "b": "2"})
    assert json.loads(job.payload) == {
        "job_type": "resize",
        "work_duration_ms": 5,
        "payload_size_bytes": 7,
        "labels": {"a": "ä", "b": "2"},
    }
    record = await tasks.status(submitted.job_id)
    assert record.spec == SPEC
    assert record.failure_reason == ""
    summary = record.summary
    assert (summary.job_id, summary.job_type) == (submitted.job_id, "resize")
    assert (summary.status, summary.cancel_requested) == (Status.QUEUED, False)
    assert (summary.started_at_ms, summary.finished_at_ms) == (0, 0)
    assert summary.created_at_ms == int(job.created_at * 1000)
    assert abs(submitted.accepted_at_ms - summary.created_at_ms) < 60_000


@pytest.mark.req("tq:DEDUP", "tq:LOCK-36")
def test_equal_specs_have_equal_payloads():
    turned = Spec("resize", 5, 7, {"a": "ä", "b": "2"})
    assert to_job(turned, "").payload == to_job(SPEC, "").payload
    assert to_spec(to_job(SPEC, "").payload) == SPEC


async def test_the_queue_is_made_once_and_not_before_it_is_needed(
    engine: Engine, tasks: EngineTaskQueue
):
    async def queues() -> set[str]:
        return {stats.queue.name for stats in await engine.list_queues()}

    assert QUEUE not in await queues()
    assert await tasks.list(Listing()) is not None
    assert QUEUE not in await queues()
    jobs = await asyncio.gather(*(tasks.submit(SPEC, "") for _ in range(5)))
    assert len({job.job_id for job in jobs}) == 5
    assert QUEUE in await queues()


async def test_a_queue_that_an_operator_made_is_taken_as_it_is(
    engine: Engine, tasks: EngineTaskQueue
):
    await engine.create_queue(QueueSpec(name=QUEUE, capacity=7))
    await tasks.submit(SPEC, "")
    assert (await engine.queue_stats(QUEUE)).queue.capacity == 7


async def test_a_limit_around_submit_is_asked_once(engine: Engine):
    asked: list[JobSpec] = []

    async def limited(specs):
        asked.extend(specs)
        return await engine.submit(specs)

    await EngineTaskQueue(engine, submit=limited).submit(SPEC, "")  # and the queue is not there
    assert len(asked) == 1

    async def refusing(specs):
        return [SubmitResult.refused(RateLimited("too fast", 2.0))]

    with pytest.raises(RateLimited):
        await EngineTaskQueue(engine, submit=refusing).submit(SPEC, "")


# -- keys ----------------------------------------------------------------------------------


@pytest.mark.req("tq:DEDUP", "tq:SUBMIT")
async def test_the_same_key_with_the_same_spec_is_the_same_job(tasks: EngineTaskQueue):
    first = await tasks.submit(SPEC, "k")
    again = await tasks.submit(Spec("resize", 5, 7, {"a": "ä", "b": "2"}), "k")
    assert again.job_id == first.job_id
    assert len((await tasks.list(Listing())).jobs) == 1


@pytest.mark.req("tq:DEDUP", "tq:LOCK-36")
@pytest.mark.parametrize(
    "other",
    [
        Spec("other", 5, 7, SPEC.labels),
        Spec("resize", 6, 7, SPEC.labels),
        Spec("resize", 5, 8, SPEC.labels),
        Spec("resize", 5, 7, {"a": "ä"}),
        Spec("resize", 5, 7, {"a": "ä", "b": "3"}),
    ],
)
async def test_the_same_key_with_another_spec_is_a_conflict(tasks: EngineTaskQueue, other: Spec):
    first = await tasks.submit(SPEC, "k")
    with pytest.raises(KeyConflict, match="client_request_id") as caught:
        await tasks.submit(other, "k")
    assert caught.value.job_id == first.job_id
    assert len((await tasks.list(Listing())).jobs) == 1


@pytest.mark.req("tq:DEDUP", "tq:LOCK-14")
async def test_without_a_key_every_submit_is_a_job(tasks: EngineTaskQueue):
    assert (await tasks.submit(SPEC, "")).job_id != (await tasks.submit(SPEC, "")).job_id


async def test_keys_of_other_queues_are_others(engine: Engine, tasks: EngineTaskQueue):
    (other,) = await engine.submit([JobSpec(payload=b"x", key="k")])
    assert (await tasks.submit(SPEC, "k")).job_id != other.unwrap()


@pytest.mark.req("tq:CODES")
@pytest.mark.parametrize(
    ("spec", "key", "field"),
    [
        (Spec(""), "", "spec.job_type"),
        (Spec("a\nb"), "", "spec.job_type"),
        (Spec("a", labels={"": "x"}), "", "spec.labels"),
        (Spec("a"), "k" * 256, "client_request_id"),
        (Spec("a"), "\0", "client_request_id"),
    ],
)
async def test_what_is_wrong_is_refused_without_a_trace(
    engine: Engine, tasks: EngineTaskQueue, spec: Spec, key: str, field: str
):
    with pytest.raises(InvalidArgument) as caught:
        await tasks.submit(spec, key)
    assert caught.value.field == field
    assert (await tasks.list(Listing())).jobs == ()


# -- jobs that are not of this face ----------------------------------------------------------


@pytest.mark.req("tq:CODES", "tq:LOCK-19")
async def test_jobs_of_other_queues_and_types_are_not_found(engine: Engine, tasks: EngineTaskQueue):
    await tasks.submit(SPEC, "")
    results = await engine.submit(
        [
            JobSpec(payload=b"x"),
            JobSpec(payload=b"x", type=TYPE),
            JobSpec(payload=b"x", queue=QUEUE),
        ]
    )
    strangers = [result.unwrap() for result in results]
    for job_id in (*strangers, "0b4ee0a2-0000-4000-8000-000000000000", "no-uuid", ""):
        for call in (tasks.status(job_id), tasks.result(job_id), tasks.cancel(job_id, "")):
            with pytest.raises(NotFound, match=f"there is no job {job_id}"):
                await call
    assert len((await tasks.list(Listing())).jobs) == 1
    for job_id in strangers:
        assert (await engine.get(job_id)).version == 1  # nothing happened to them


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"job_type":1}', b"\xff", b"[" * 100_000])
async def test_a_payload_that_no_submit_of_this_face_wrote_can_be_looked_at(
    engine: Engine, tasks: EngineTaskQueue, payload: bytes
):
    await engine.create_queue(QueueSpec(name=QUEUE))
    (result,) = await engine.submit([JobSpec(payload=payload, queue=QUEUE, type=TYPE)])
    assert (await tasks.status(result.unwrap())).spec == Spec("")
    assert [job.job_type for job in (await tasks.list(Listing())).jobs] == [""]
