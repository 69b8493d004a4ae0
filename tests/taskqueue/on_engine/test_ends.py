"""Jobs on the engine end as in the document's own services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import Move, Reason
from jobqueue.core.queue import QueueSpec
from jobqueue.core.store import ALL_QUEUES
from jobqueue.engine.engine import Engine
from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.gateway import Gateway
from jobqueue.taskqueue.components.model import (
    CANCELED_UNSTARTED,
    MAX_OUTPUT_BYTES,
    Envelope,
    Spec,
    Status,
    checksum,
)
from jobqueue.taskqueue.components.state import JobLedger, ReadyQueue, ResultShelf
from jobqueue.taskqueue.components.worker_loop import WorkerLoop, simulate
from jobqueue.taskqueue.engine_job import QUEUE, RECOVERIES
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from jobqueue.tasks.task import define
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings
from tests import patience
from tests.api.public.hand import Hand
from tests.taskqueue.on_engine.conftest import until_result, until_status, with_task

SPECS = [
    Spec("any"),
    Spec("any", 20, 10),
    Spec("any", 0, MAX_OUTPUT_BYTES),
    Spec("any", 0, MAX_OUTPUT_BYTES + 1),
    Spec("any", 0, 2**32 - 1),
    Spec("fail", 5, 10),
]


@pytest_asyncio.fixture
async def design() -> AsyncIterator[Gateway]:
    """The document's own parts, in this process."""
    jobs, queue, results = JobLedger(), ReadyQueue(), ResultShelf()
    gateway = Gateway(jobs, queue, results)
    coordinator = Coordinator(jobs, queue, results)
    worker = WorkerLoop(coordinator, simulate, worker_id="w")
    await coordinator.start()
    await worker.start()
    yield gateway
    await worker.stop(5.0)
    await coordinator.stop()
    await gateway.stop()


async def test_it_waits_for_a_worker_that_knows_its_type(engine: Engine, tasks: EngineTaskQueue):
    """An app's worker may serve every queue; what its own tasks are not, it never gets."""
    stranger = await Hand.connect(
        engine, worker_id="app", queues=(ALL_QUEUES,), slots=5, types=frozenset({"", "add"})
    )
    try:
        waiting = await tasks.submit(Spec("any"), "")
        (own,) = await engine.submit([JobSpec(payload=b"1", queue=QUEUE, type="add")])
        assert (await stranger.take()).id == own.unwrap()
        pool = WorkerRuntime(engine, with_task(), WorkerSettings(id="pool", queues=(QUEUE,)))
        await pool.start()
        try:
            assert (await until_result(tasks, waiting.job_id)).status is Status.DONE
        finally:
            await pool.stop(5.0)
        assert stranger.jobs.empty()
    finally:
        await stranger.link.close()


async def test_an_apps_worker_runs_it_beside_its_own_tasks(engine: Engine, tasks: EngineTaskQueue):
    registry = with_task()
    registry.add(define(_add))
    app = WorkerRuntime(engine, registry, WorkerSettings(id="app", queues=(QUEUE,)))
    await app.start()
    try:
        submitted = await tasks.submit(Spec("any"), "")
        assert (await until_result(tasks, submitted.job_id)).status is Status.DONE
    finally:
        await app.stop(5.0)


async def _add(a: int, b: int) -> int:
    return a + b


@pytest.mark.req("tq:NFR-1", "tq:RESULT", "tq:FR-3", "tq:LOCK-18")
@pytest.mark.parametrize(
    "spec", SPECS, ids=lambda spec: f"{spec.job_type}-{spec.payload_size_bytes}"
)
async def test_a_job_ends_as_in_the_services(
    tasks: EngineTaskQueue, pool: WorkerRuntime, design: Gateway, spec: Spec
):
    async def run(where: EngineTaskQueue | Gateway) -> tuple[Envelope, str]:
        job_id = (await where.submit(spec, "")).job_id
        envelope = await until_result(where, job_id)
        record = await where.status(job_id)
        summary = record.summary
        assert summary.status is envelope.status
        assert 0 < summary.created_at_ms <= summary.finished_at_ms
        assert 0 < summary.started_at_ms <= summary.finished_at_ms
        assert envelope.checksum == checksum(envelope.output)
        return replace(envelope, job_id="", runtime_ms=0), record.failure_reason

    ours = await run(tasks)
    assert ours == await run(design)
    assert len(ours[0].output) == (spec.payload_size_bytes if ours[0].status is Status.DONE else 0)


@pytest.mark.req("tq:RESULT")
async def test_there_is_no_result_before_the_end(tasks: EngineTaskQueue, hand: Hand):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    assert await tasks.result(job_id) is None
    job = await hand.begin()
    assert await tasks.result(job_id) is None
    summary = (await tasks.status(job_id)).summary
    assert summary.status is Status.RUNNING
    assert summary.started_at_ms >= summary.created_at_ms
    assert summary.finished_at_ms == 0
    await hand.succeed(job, b"abc")
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert envelope == Envelope(
        job_id,
        Status.DONE,
        envelope.runtime_ms,
        "3 bytes of output",
        b"abc",
        checksum(b"abc"),
    )


@pytest.mark.req("tq:RESULT")
async def test_runtime_is_never_less_than_it_took(tasks: EngineTaskQueue, pool: WorkerRuntime):
    job_id = (await tasks.submit(Spec("any", 30), "")).job_id
    envelope = await until_result(tasks, job_id)
    summary = (await tasks.status(job_id)).summary
    shown = summary.finished_at_ms - summary.started_at_ms  # each rounded down
    assert envelope.runtime_ms in (shown, shown + 1)


async def test_what_is_handed_out_and_not_started_is_queued(tasks: EngineTaskQueue, hand: Hand):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    hand.link.grant(1)
    await hand.take()
    summary = (await tasks.status(job_id)).summary
    assert (summary.status, summary.started_at_ms) == (Status.QUEUED, 0)


@pytest.mark.req("tq:NFR-1", "tq:RESULT")
async def test_a_job_that_lost_its_worker_is_queued_again_and_runs(
    engine: Engine, tasks: EngineTaskQueue, hand: Hand
):
    """In a store the job is recovered. (The document's services leave it RUNNING.)"""
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    job = await hand.begin()
    await engine._apply([Transition.worker_lost(job.seq, job.lease, "worker hand is gone")])
    record = await tasks.status(job_id)
    assert (record.summary.status, record.failure_reason) == (Status.QUEUED, "")
    assert (record.summary.started_at_ms, record.summary.finished_at_ms) == (0, 0)
    assert await tasks.result(job_id) is None
    await engine.retry(job_id)  # its time would come by itself
    await hand.run(b"made")
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert (envelope.status, envelope.output) == (Status.DONE, b"made")


@pytest.mark.req("tq:CANCEL", "tq:FR-2")
async def test_a_job_that_lost_its_worker_and_is_canceled_before_the_next_has_not_started(
    engine: Engine, tasks: EngineTaskQueue, hand: Hand
):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    job = await hand.begin()
    await engine._apply([Transition.worker_lost(job.seq, job.lease, "worker hand is gone")])
    assert (await tasks.cancel(job_id, "")).current is Status.CANCELED
    assert (await tasks.status(job_id)).summary.started_at_ms == 0
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert (envelope.output_summary, envelope.runtime_ms) == (CANCELED_UNSTARTED, 0)


@pytest.mark.req("tq:RESULT")
async def test_a_job_that_loses_every_worker_fails_with_a_reason(
    engine: Engine, tasks: EngineTaskQueue, hand: Hand
):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    for _ in range(1 + RECOVERIES):
        job = await hand.begin()
        await engine._apply([Transition.worker_lost(job.seq, job.lease, "worker hand is gone")])
        if (await tasks.status(job_id)).summary.status is Status.FAILED:
            break
        found = await engine.get(job_id)
        await engine._apply([Transition(found.seq, Move.RETRY_WHEN_DUE, version=found.version)])
    record = await tasks.status(job_id)
    assert record.summary.status is Status.FAILED
    assert record.failure_reason
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert (envelope.status, envelope.output) == (Status.FAILED, b"")
    assert envelope.output_summary == record.failure_reason


async def test_a_failure_without_words_has_its_reason(engine: Engine, tasks: EngineTaskQueue):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    await engine.delete_queue(QUEUE, force=True)
    assert (await tasks.status(job_id)).failure_reason == Reason.QUEUE_DELETED
    assert (await tasks.submit(Spec("any"), "")).job_id != job_id  # the queue is made again


async def test_a_job_that_an_operator_retries_is_queued_again(
    engine: Engine, tasks: EngineTaskQueue, hand: Hand
):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    job = await hand.begin()
    await hand.fail(job, retryable=False)
    await engine.retry(job_id)
    record = await tasks.status(job_id)
    assert (record.summary.status, record.failure_reason) == (Status.QUEUED, "")
    assert (record.summary.started_at_ms, record.summary.finished_at_ms) == (0, 0)
    assert await tasks.result(job_id) is None


async def test_a_long_failure_is_cut_in_the_summary(tasks: EngineTaskQueue, hand: Hand):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    await hand.fail(await hand.begin(), "x" * 8_000, retryable=False)
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert envelope.output_summary == "x" * 4_096
    assert (await tasks.status(job_id)).failure_reason == "x" * 8_000


# -- cancel ----------------------------------------------------------------------------------


@pytest.mark.req("tq:CANCEL", "tq:NFR-1", "tq:FR-4")
async def test_what_is_queued_is_canceled_at_once(tasks: EngineTaskQueue, design: Gateway):
    async def run(where: EngineTaskQueue | Gateway) -> tuple[Any, ...]:
        if where is design:
            busy = [await where.submit(Spec("any", 400), "") for _ in range(6)]  # every slot
            for one in busy:
                await until_status(where, one.job_id, Status.RUNNING)
        job_id = (await where.submit(Spec("any"), "")).job_id
        first = await where.cancel(job_id, "because")
        again = await where.cancel(job_id, "")
        record, envelope = await where.status(job_id), await where.result(job_id)
        assert envelope is not None
        assert record.summary.finished_at_ms >= record.summary.created_at_ms
        assert record.summary.started_at_ms == 0
        return (
            replace(first, job_id=""),
            replace(again, job_id=""),
            replace(envelope, job_id=""),
            (record.summary.status, record.summary.cancel_requested, record.failure_reason),
        )

    ours = await run(tasks)
    assert ours == await run(design)
    assert ours[0].current is Status.CANCELED
    assert (ours[0].already_terminal, ours[1].already_terminal) == (False, True)


@pytest.mark.req("tq:CANCEL")
async def test_what_was_handed_out_and_not_started_is_canceled_at_once(
    tasks: EngineTaskQueue, hand: Hand
):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    hand.link.grant(1)
    await hand.take()
    assert (await tasks.cancel(job_id, "")).current is Status.CANCELED
    envelope = await tasks.result(job_id)
    assert envelope is not None
    assert envelope.output_summary == "canceled before it started"


@pytest.mark.req("tq:CANCEL", "tq:NFR-1", "tq:LOCK-39")
@pytest.mark.parametrize("kind", ["any", "fail"])
async def test_what_runs_is_asked_and_takes_its_time(
    tasks: EngineTaskQueue, pool: WorkerRuntime, design: Gateway, kind: str
):
    spec = Spec(kind, round(1_000 * patience.stretched(0.7)), 10)

    async def run(where: EngineTaskQueue | Gateway) -> tuple[Any, ...]:
        began = time.monotonic()
        job_id = (await where.submit(spec, "")).job_id
        await until_status(where, job_id, Status.RUNNING)
        first = await where.cancel(job_id, "because")
        asked = (await where.status(job_id)).summary
        again = await where.cancel(job_id, "")
        envelope = await until_result(where, job_id)
        record = await where.status(job_id)
        # Not interrupted: it ran as long as it was to run. (When it began is written a little
        # later than it began, so that its runtime may be shown shorter.)
        assert time.monotonic() - began >= spec.work_duration_ms / 1000
        assert envelope.runtime_ms > 0
        assert record.summary.started_at_ms > 0
        return (
            replace(first, job_id=""),
            replace(again, job_id=""),
            (asked.status, asked.cancel_requested),
            replace(envelope, job_id="", runtime_ms=0),
            (record.summary.status, record.summary.cancel_requested, record.failure_reason),
        )

    ours, theirs = await asyncio.gather(run(tasks), run(design))
    assert ours == theirs
    assert ours[2] == (Status.RUNNING, True)
    assert ours[3].output_summary == "canceled while it ran"


@pytest.mark.req("tq:CANCEL")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_has_ended_stays_as_it_ended(tasks: EngineTaskQueue, hand: Hand, fails: bool):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    job = await hand.begin()
    await (hand.fail(job, retryable=False) if fails else hand.succeed(job, b"r"))
    before = await tasks.status(job_id)
    answer = await tasks.cancel(job_id, "")
    assert answer.current is (Status.FAILED if fails else Status.DONE)
    assert (answer.accepted, answer.already_terminal) == (True, True)
    assert await tasks.status(job_id) == before


@pytest.mark.req("tq:CANCEL")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_between_the_look_and_the_cancel_is_told(
    engine: Engine, tasks: EngineTaskQueue, hand: Hand, fails: bool, monkeypatch
):
    job_id = (await tasks.submit(Spec("any"), "")).job_id
    job = await hand.begin()
    cancel = engine.cancel

    async def late(job_id: str):
        await (hand.fail(job, retryable=False) if fails else hand.succeed(job))
        return await cancel(job_id)

    monkeypatch.setattr(engine, "cancel", late)
    answer = await tasks.cancel(job_id, "")
    assert answer.current is (Status.FAILED if fails else Status.DONE)
    assert answer.already_terminal


async def test_a_worker_that_stops_does_not_wait_for_a_canceled_job(
    engine: Engine, tasks: EngineTaskQueue, pool: WorkerRuntime
):
    await engine.create_queue(QueueSpec(name=QUEUE))
    job_id = (await tasks.submit(Spec("any", 3_600_000), "")).job_id
    other = (await tasks.submit(Spec("any", 3_600_000), "")).job_id
    for one in (job_id, other):
        await until_status(tasks, one, Status.RUNNING)
    await tasks.cancel(job_id, "")
    async with patience.timeout(20):
        await pool.stop(0.5)
    assert pool.running == 0
