"""An answer that was lost is asked for again, and is the first one: nothing happens twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.model import (
    Actor,
    Applied,
    CreatedJob,
    Envelope,
    Report,
    Status,
    Stored,
    Work,
    WorkOutcome,
)
from jobqueue.taskqueue.components.state import JobLedger, ReadyQueue, ResultShelf
from jobqueue.taskqueue.grpc.remote import (
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from tests.taskqueue.wire.parts import ENVELOPE, JOB, OTHER, SPEC

pytestmark = [pytest.mark.req("tq:RETRY", "tq:CODES"), pytest.mark.usefixtures("patient")]


@dataclasses.dataclass
class Owners:
    """The real owners behind a server, and clients of it."""

    services: Any
    ledger: JobLedger
    queue: ReadyQueue
    shelf: ResultShelf
    gateway: Any
    coordinator: Any
    worker: Any

    @property
    def jobs(self) -> RemoteJobs:
        return RemoteJobs(self.gateway)

    def lost(self, method: str) -> None:
        """Assert that gRPC carried out every call twice, with equal answers."""
        answers = [answer for name, answer in self.services.tap.answers if name == method]
        assert len(answers) == 2
        assert answers[0] == answers[1]
        ids = self.services.tap.request_ids()[-2:]
        assert ids[0] == ids[1] == "r"


@pytest_asyncio.fixture
async def owners(serve, peer):
    ledger, queue, shelf = JobLedger(), ReadyQueue(), ResultShelf()
    coordination = Coordinator(ledger, queue, shelf)
    await coordination.start()
    services = await serve(jobs=ledger, queue=queue, results=shelf, coordination=coordination)
    target = services.target
    yield Owners(
        services,
        ledger,
        queue,
        shelf,
        peer(target),
        peer(target, Actor.COORDINATOR),
        peer(target, Actor.WORKER),
    )
    await coordination.stop()


async def queued(owners) -> str:
    created = await owners.ledger.create(SPEC, "", request_id="")
    await owners.queue.enqueue(created.job_id, 1, request_id="")
    return created.job_id


async def test_create(owners):
    owners.services.tap.lose("CreateJob")
    created = await owners.jobs.create(SPEC, "", request_id="r")
    assert created == CreatedJob(created.job_id, Status.QUEUED, created=True)
    assert len(owners.ledger) == 1
    owners.lost("CreateJob")


async def test_create_with_a_key(owners):
    """The second attempt must not be told that somebody else made it: only who did compensates."""
    owners.services.tap.lose("CreateJob")
    assert (await owners.jobs.create(SPEC, "k", request_id="r")).created
    owners.lost("CreateJob")


async def test_delete(owners):
    job_id = await queued(owners)
    owners.services.tap.lose("DeleteJobIfStatus")
    answer = await owners.jobs.delete_if(job_id, Status.QUEUED, request_id="r")
    assert answer == Applied(True, None)
    owners.lost("DeleteJobIfStatus")


async def test_transition(owners):
    job_id = await queued(owners)
    owners.services.tap.lose("TransitionJobStatus")
    answer = await RemoteJobs(owners.coordinator).transition(
        job_id, Status.QUEUED, Status.RUNNING, actor=Actor.COORDINATOR, request_id="r"
    )
    assert answer == Applied(True, Status.RUNNING)
    owners.lost("TransitionJobStatus")


async def test_request_cancel(owners):
    job_id = await queued(owners)
    owners.services.tap.lose("SetCancelRequested")
    answer = await owners.jobs.request_cancel(job_id, "why", request_id="r")
    assert answer == Applied(True, Status.QUEUED)
    owners.lost("SetCancelRequested")


async def test_enqueue(owners):
    owners.services.tap.lose("EnqueueJob")
    assert await RemoteQueue(owners.gateway).enqueue(JOB, 1, request_id="r")
    assert len(owners.queue) == 1
    owners.lost("EnqueueJob")


async def test_dequeue(owners):
    await owners.queue.enqueue(JOB, 1, request_id="")
    await owners.queue.enqueue(OTHER, 2, request_id="")
    owners.services.tap.lose("DequeueJob")
    assert await RemoteQueue(owners.coordinator).dequeue("w", request_id="r") == JOB
    assert len(owners.queue) == 1  # the other one is still there
    owners.lost("DequeueJob")


async def test_remove(owners):
    await owners.queue.enqueue(JOB, 1, request_id="")
    owners.services.tap.lose("RemoveJobIfPresent")
    assert await RemoteQueue(owners.gateway).remove(JOB, request_id="r") is True
    owners.lost("RemoveJobIfPresent")


async def test_store(owners):
    owners.services.tap.lose("StoreResult")
    stored = await RemoteResults(owners.coordinator).store(ENVELOPE, request_id="r")
    assert stored == Stored(True, False, Status.DONE)
    owners.lost("StoreResult")


async def test_fetch(owners):
    first, _ = await queued(owners), await queued(owners)
    worker = RemoteCoordination(owners.worker)
    await worker.heartbeat("w", 1, 1)
    owners.services.tap.lose("FetchWork")
    assert await worker.fetch("w", request_id="r") == Work(first, SPEC)
    assert len(owners.queue) == 1
    owners.lost("FetchWork")


async def test_report(owners):
    job_id = await queued(owners)
    worker = RemoteCoordination(owners.worker)
    await worker.heartbeat("w", 1, 1)
    await worker.fetch("w", request_id="f")
    owners.services.tap.lose("ReportWorkOutcome")
    report = Report("w", job_id, WorkOutcome.SUCCEEDED, output=b"made")
    assert await worker.report(report, request_id="r") is True
    owners.lost("ReportWorkOutcome")
    kept = await owners.shelf.get(job_id)
    assert isinstance(kept, Envelope)
    assert (kept.status, kept.output) == (Status.DONE, b"made")
