"""Every field of every message arrives as what it was."""

from __future__ import annotations

import dataclasses

import pytest

from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.model import (
    Actor,
    Applied,
    CreatedJob,
    JobRecord,
    Listing,
    Sort,
    Spec,
    Status,
    Stored,
    SummaryPage,
    Work,
    WorkOutcome,
)
from jobqueue.taskqueue.grpc import codec
from jobqueue.taskqueue.grpc.remote import (
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.parts import ENVELOPE, JOB, PAGE, RECORD, REPORT, SPEC

pytestmark = pytest.mark.usefixtures("patient")

LISTING = Listing(frozenset({Status.DONE, Status.QUEUED}), Sort.CREATED_AT_ASC, 100, 150)


async def through_everything(serve, peer, client):
    """Each method once, with no field left at its default; returns what the server saw."""
    services = await serve(results=parts.results(store=Stored(True, True, Status.FAILED)))
    asked = {name: part.calls for name, part in services.parts.items()}

    remote = client(services.target)
    assert dataclasses.asdict(await remote.submit(SPEC, "k")) == {
        "job_id": JOB,
        "accepted_at_ms": 2**41,
    }
    seen = await remote.status(JOB)
    assert seen == JobRecord(
        dataclasses.replace(RECORD.summary, job_type=""), Spec(""), "it broke\nhere"
    )
    assert await remote.result(JOB) == ENVELOPE
    assert await remote.cancel(JOB, "why") == services.parts["public"].answers["cancel"]
    assert await remote.list(LISTING) == PAGE
    assert asked["public"] == [
        ("submit", (SPEC, "k"), {}),
        ("status", (JOB,), {}),
        ("result", (JOB,), {}),
        ("cancel", (JOB, "why"), {}),
        ("list", (LISTING,), {}),
    ]

    by_gateway = peer(services.target)
    jobs = RemoteJobs(by_gateway)
    assert await jobs.create(SPEC, "k", request_id="r1") == CreatedJob(JOB, Status.RUNNING, True)
    assert await jobs.delete_if(JOB, Status.QUEUED, request_id="r2") == Applied(True, None)
    assert await jobs.get(JOB) == RECORD
    assert await jobs.list(LISTING) == PAGE
    applied = await jobs.transition(
        JOB, Status.QUEUED, Status.CANCELED, actor="gateway", reason="why", request_id="r3"
    )
    assert applied == Applied(True, Status.CANCELED)
    assert await jobs.request_cancel(JOB, "why", request_id="r4") == Applied(True, Status.RUNNING)
    assert asked["jobs"] == [
        ("create", (SPEC, "k"), {"request_id": "r1"}),
        ("delete_if", (JOB, Status.QUEUED), {"request_id": "r2"}),
        ("get", (JOB,), {}),
        ("list", (LISTING,), {}),
        (
            "transition",
            (JOB, Status.QUEUED, Status.CANCELED),
            {"actor": "gateway", "reason": "why", "request_id": "r3"},
        ),
        ("request_cancel", (JOB, "why"), {"request_id": "r4"}),
    ]

    by_coordinator = peer(services.target, Actor.COORDINATOR)
    queue = RemoteQueue(by_coordinator)
    assert await queue.enqueue(JOB, 2**41, rescue=True, request_id="r5") is True
    assert await queue.dequeue("worker-1", request_id="r6") == JOB
    assert await queue.remove(JOB, request_id="r7") is True
    assert await RemoteQueue(by_gateway).enqueue(JOB, 7, request_id="r8") is True
    assert asked["queue"] == [
        ("enqueue", (JOB, 2**41), {"rescue": True, "request_id": "r5"}),
        ("dequeue", ("worker-1",), {"request_id": "r6"}),
        ("remove", (JOB,), {"request_id": "r7"}),
        ("enqueue", (JOB, 7), {"rescue": False, "request_id": "r8"}),
    ]

    stored = await RemoteResults(by_coordinator).store(ENVELOPE, request_id="r9")
    assert stored == Stored(True, True, Status.FAILED)
    assert await RemoteResults(by_gateway).get(JOB) == ENVELOPE
    assert asked["results"] == [("store", (ENVELOPE,), {"request_id": "r9"}), ("get", (JOB,), {})]

    coordination = RemoteCoordination(peer(services.target, Actor.WORKER))
    assert await coordination.heartbeat("worker-1", 2**41, 6, incarnation="i", running=[JOB]) == 900
    assert await coordination.fetch("worker-1", request_id="r10") == Work(JOB, SPEC)
    services.parts["coordination"].answers["fetch"] = Work(retry_after_ms=200)
    assert await coordination.fetch("worker-1", request_id="r11") == Work(retry_after_ms=200)
    assert await coordination.report(REPORT, request_id="r12") is True
    assert asked["coordination"] == [
        ("heartbeat", ("worker-1", 2**41, 6), {"incarnation": "i", "running": [JOB]}),
        ("fetch", ("worker-1",), {"request_id": "r10"}),
        ("fetch", ("worker-1",), {"request_id": "r11"}),
        ("report", (REPORT,), {"request_id": "r12"}),
    ]
    return services


@pytest.mark.req("tq:PROTO")
async def test_every_field_arrives(serve, peer, client):
    services = await through_everything(serve, peer, client)
    # The test itself is complete: every field of both files was something else than its default.
    filled: set[tuple[str, str]] = set()

    def look(message):
        for field, value in message.ListFields():
            filled.add((message.DESCRIPTOR.full_name, field.name))
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            for inner in value if field.is_repeated else [value]:
                look(inner)

    for _, message in (*services.tap.seen, *services.tap.answers):
        look(message)
    every = {
        (message.full_name, field.name)
        for file in (public, internal)
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    assert every - filled == {
        # A delete that was made leaves no status; see the next test.
        ("taskqueue.internal.v1.DeleteJobIfStatusResponse", "current_status")
    }


async def test_what_is_not_there(serve, peer, client):
    services = await serve(
        public=parts.task_queue(result=None, list=SummaryPage(())),
        jobs=parts.jobs(
            delete_if=Applied(False, Status.RUNNING), request_cancel=Applied(False, Status.DONE)
        ),
        queue=parts.queue(enqueue=False, dequeue=None, remove=False),
        results=parts.results(get=None, store=Stored(False, True, Status.CANCELED)),
        coordination=parts.coordination(report=False),
    )
    remote = client(services.target)
    assert await remote.result(JOB) is None
    assert services.tap.answers[-1][1] == public.GetJobResultResponse(job_id=JOB)
    assert await remote.list(Listing()) == SummaryPage((), None)
    gateway = peer(services.target)
    jobs = RemoteJobs(gateway)
    gone = await jobs.delete_if(JOB, Status.QUEUED, request_id="")
    assert gone == Applied(False, Status.RUNNING)
    assert await jobs.request_cancel(JOB, "", request_id="") == Applied(False, Status.DONE)
    queue = RemoteQueue(peer(services.target, Actor.COORDINATOR))
    assert await queue.enqueue(JOB, 1, rescue=True, request_id="") is False
    assert await queue.dequeue("w", request_id="") is None
    assert await queue.remove(JOB, request_id="") is False
    assert await RemoteResults(gateway).get(JOB) is None
    canceled = dataclasses.replace(ENVELOPE, status=Status.CANCELED)
    stored = await RemoteResults(gateway).store(canceled, request_id="")
    assert stored == Stored(False, True, Status.CANCELED)
    worker = RemoteCoordination(peer(services.target, Actor.WORKER))
    assert await worker.report(REPORT, request_id="") is False


@pytest.mark.parametrize("status", Status)
def test_each_status(status):
    assert codec.STATUS_TO_PB[status] == status.value
    assert codec.asked_status(status.value, "x") is status
    assert codec.status_from(status.value) is status


@pytest.mark.parametrize("outcome", WorkOutcome)
def test_each_outcome(outcome):
    report = dataclasses.replace(REPORT, outcome=outcome)
    assert codec.report_to_pb(report).outcome == outcome.value
    assert codec.asked_report(codec.report_to_pb(report)) == report


@pytest.mark.req("tq:LOCK-5", "tq:LIST")
@pytest.mark.parametrize("request_type", [public.ListJobsRequest, internal.ListJobRecordsRequest])
def test_a_listing_by_default(request_type):
    assert codec.asked_listing(request_type()) == Listing(frozenset(), Sort.CREATED_AT_DESC, 0, 50)
    page = public.PageRequest(page_size=201, page_token="7")
    assert codec.asked_listing(request_type(page=page)) == Listing(offset=7, limit=200)


@pytest.mark.parametrize("value", [0, 6, -1])
def test_a_server_that_sends_nonsense(value):
    with pytest.raises(Internal, match=str(value)):
        codec.status_from(value)


def test_a_server_that_sends_a_page_token_of_its_own():
    page = public.PageResponse(next_page_token="abc")
    with pytest.raises(Internal, match="abc"):
        codec.page_from_pb(public.ListJobsResponse(page=page))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (Spec("x", work_duration_ms=-1), "spec.work_duration_ms"),
        (Spec("x", work_duration_ms=2**32), "spec.work_duration_ms"),
        (Spec("x", payload_size_bytes=2**32), "spec.payload_size_bytes"),
        (Spec("\ud800"), "spec.job_type"),
        (Spec("x", labels={"\ud800": ""}), "spec.labels"),
        (Spec("x", labels={"a": "\ud800"}), "spec.labels"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(spec, field):
    with pytest.raises(InvalidArgument) as caught:
        codec.spec_to_pb(spec)
    assert caught.value.field == field


async def test_other_text_that_does_not_fit(client):
    remote = client("127.0.0.1:1")  # nothing is sent
    for call, field in (
        (remote.submit(SPEC, "\ud800"), "client_request_id"),
        (remote.status("\ud800"), "job_id"),
        (remote.cancel(JOB, "\ud800"), "reason"),
        (remote.list(Listing(limit=-1)), "page.page_size"),
        (remote.list(Listing(offset=-1)), "page.page_token"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert caught.value.field == field


def test_what_a_job_made_is_never_refused():
    """Its outcome would be lost with it."""
    report = dataclasses.replace(
        REPORT, failure_reason="a\ud800b", output_summary="\udfff", runtime_ms=2**40
    )
    sent = codec.report_to_pb(report)
    assert (sent.failure_reason, sent.output_summary) == ("a?b", "?")
    assert sent.runtime_ms == 2**32 - 1
