"""Wrong requests, as a foreign client may send them: the right status, the field, no effect."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.core.job import JobQuery
from jobqueue.pb.jq.v1 import client_pb2 as c
from jobqueue.pb.jq.v1 import client_pb2_grpc, operator_pb2_grpc, worker_pb2_grpc
from jobqueue.pb.jq.v1 import operator_pb2 as o
from jobqueue.pb.jq.v1 import types_pb2 as t
from jobqueue.pb.jq.v1 import worker_pb2 as w
from tests import patience

NOWHERE = "0b4ee0a2-0000-4000-8000-000000000000"
INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


class Stubs:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.client = client_pb2_grpc.ClientServiceStub(channel)
        self.operator = operator_pb2_grpc.OperatorServiceStub(channel)
        self.worker = worker_pb2_grpc.WorkerServiceStub(channel)


@pytest_asyncio.fixture
async def stubs(port) -> AsyncIterator[Stubs]:
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        yield Stubs(channel)


def spec(**fields):
    return c.SubmitRequest(spec=t.JobSpec(**{"payload": b"x", **fields}))


CLIENT = [
    ("Submit", c.SubmitRequest(), INVALID, "spec"),
    ("Submit", spec(payload=b""), INVALID, "payload"),
    ("Submit", spec(payload=b"x" * (1024 * 1024 + 1)), INVALID, "payload"),
    ("Submit", spec(priority=10), INVALID, "priority"),
    ("Submit", spec(priority=-1), INVALID, "priority"),
    ("Submit", spec(max_retries=-1), INVALID, "max_retries"),
    ("Submit", spec(ttl_seconds=float("nan")), INVALID, "ttl"),
    ("Submit", spec(timeout_seconds=-1.0), INVALID, "timeout"),
    ("Submit", spec(queue=""), INVALID, "queue"),
    ("Submit", spec(queue="no/slash"), INVALID, "queue"),
    ("Submit", spec(queue="nowhere"), MISSING, None),
    ("Submit", spec(idempotency_key=""), INVALID, "idempotency_key"),
    ("SubmitBatch", c.SubmitBatchRequest(specs=[t.JobSpec()] * 10_001), INVALID, "specs"),
    ("GetJob", c.GetJobRequest(job_id="7"), INVALID, "job_id"),
    ("GetJob", c.GetJobRequest(), INVALID, "job_id"),
    ("GetJob", c.GetJobRequest(job_id=NOWHERE), MISSING, None),
    ("WaitJob", c.WaitJobRequest(job_id=NOWHERE, wait_seconds=1), MISSING, None),
    ("WaitJob", c.WaitJobRequest(job_id=NOWHERE, wait_seconds=-1), INVALID, "wait_seconds"),
    (
        "WaitJob",
        c.WaitJobRequest(job_id=NOWHERE, wait_seconds=float("nan")),
        INVALID,
        "wait_seconds",
    ),
    ("CancelJob", c.CancelJobRequest(job_id="x"), INVALID, "job_id"),
    ("CancelJob", c.CancelJobRequest(job_id=NOWHERE), MISSING, None),
    ("GetHistory", c.GetHistoryRequest(job_id="x"), INVALID, "job_id"),
    ("GetHistory", c.GetHistoryRequest(job_id=NOWHERE), MISSING, None),
    ("ListJobs", c.ListJobsRequest(states=[99]), INVALID, "states"),  # type: ignore[list-item]
    ("ListJobs", c.ListJobsRequest(states=[t.JOB_STATE_UNSPECIFIED]), INVALID, "states"),
    ("ListJobs", c.ListJobsRequest(page_size=0), INVALID, "limit"),
    ("ListJobs", c.ListJobsRequest(page_size=-5), INVALID, "limit"),
    ("ListJobs", c.ListJobsRequest(page_token="garbage"), INVALID, "page_token"),
]
OPERATOR = [
    ("CreateQueue", o.CreateQueueRequest(), INVALID, "queue"),
    ("CreateQueue", o.CreateQueueRequest(queue=t.Queue()), INVALID, "name"),
    ("CreateQueue", o.CreateQueueRequest(queue=t.Queue(name="q", max_retries=-1)), INVALID, None),
    (
        "CreateQueue",
        o.CreateQueueRequest(queue=t.Queue(name="q", retry_profile="zigzag")),
        INVALID,
        "retry_profile",
    ),
    (
        "CreateQueue",
        o.CreateQueueRequest(queue=t.Queue(name="q", priority_weights={12: 1})),
        INVALID,
        "priority_weights",
    ),
    ("UpdateQueue", o.UpdateQueueRequest(), INVALID, "queue"),
    ("UpdateQueue", o.UpdateQueueRequest(queue=t.Queue(name="default")), INVALID, "update"),
    (
        "UpdateQueue",
        o.UpdateQueueRequest(queue=t.Queue(name="nowhere", max_retries=1)),
        MISSING,
        None,
    ),
    (
        "UpdateQueue",
        o.UpdateQueueRequest(queue=t.Queue(name="default", retry_jitter=2)),
        INVALID,
        "retry_jitter",
    ),
    (
        "UpdateQueue",
        o.UpdateQueueRequest(queue=t.Queue(name="default"), reset=["paused"]),
        INVALID,
        "reset",
    ),
    (
        "UpdateQueue",
        o.UpdateQueueRequest(queue=t.Queue(name="default", ttl_seconds=1), reset=["ttl_seconds"]),
        INVALID,
        "reset",
    ),
    ("DeleteQueue", o.DeleteQueueRequest(name="nowhere"), MISSING, None),
    ("PauseQueue", o.PauseQueueRequest(name="nowhere"), MISSING, None),
    ("ResumeQueue", o.ResumeQueueRequest(), MISSING, None),
    ("GetQueueStats", o.GetQueueStatsRequest(name="nowhere"), MISSING, None),
    ("DrainWorker", o.DrainWorkerRequest(worker_id="nobody"), MISSING, None),
    ("ShutdownWorker", o.ShutdownWorkerRequest(worker_id="nobody"), MISSING, None),
    ("RetryJob", o.RetryJobRequest(job_id="x"), INVALID, "job_id"),
    ("DeleteJob", o.DeleteJobRequest(job_id=NOWHERE), MISSING, None),
]


def info(**fields):
    given = {"id": "w", "incarnation": 5, "concurrency": 2, "queues": ["default"], **fields}
    return w.RegisterRequest(worker=t.WorkerInfo(**given))


WORKER = [
    ("Register", info(id=""), INVALID, "worker_id"),
    ("Register", info(incarnation=0), INVALID, "incarnation"),
    ("Register", info(incarnation=2**63), INVALID, "incarnation"),
    ("Register", info(concurrency=0), INVALID, "concurrency"),
    ("Register", info(queues=[]), INVALID, "queues"),
    ("Fetch", w.FetchRequest(worker_id="nobody", incarnation=1, limit=1), MISSING, None),
    ("Fetch", w.FetchRequest(worker_id="w"), INVALID, "incarnation"),
    ("Fetch", w.FetchRequest(worker_id="w", incarnation=5, limit=0), INVALID, "limit"),
    ("Fetch", w.FetchRequest(worker_id="w", incarnation=5, limit=3), INVALID, "limit"),
    (
        "Fetch",
        w.FetchRequest(worker_id="w", incarnation=5, limit=1, wait_seconds=-1),
        INVALID,
        "wait_seconds",
    ),
    (
        "Report",
        w.ReportRequest(worker_id="w", incarnation=5, reports=[w.Report(kind=1, seq=1)]),  # type: ignore[arg-type]
        INVALID,
        "report.lease",
    ),
    (
        "Report",
        w.ReportRequest(worker_id="w", incarnation=5, reports=[w.Report(seq=1, lease=1)]),
        INVALID,
        "report.kind",
    ),
    (
        "Report",
        w.ReportRequest(worker_id="w", incarnation=5, reports=[w.Report(kind=77, seq=1, lease=1)]),  # type: ignore[arg-type]
        INVALID,
        "report.kind",
    ),
    ("Report", w.ReportRequest(worker_id="w", incarnation=6), MISSING, None),
    ("Heartbeat", w.HeartbeatRequest(worker_id="w"), INVALID, "incarnation"),
    ("Heartbeat", w.HeartbeatRequest(worker_id="w", incarnation=5, leases=[0]), INVALID, "leases"),
    *(
        (
            "Heartbeat",
            w.HeartbeatRequest(worker_id="w", incarnation=5, progress=[bad]),
            INVALID,
            field,
        )
        for bad, field in (
            (w.LeaseProgress(lease=1, value=40), "progress.value"),
            (w.LeaseProgress(lease=1, value=math.nan), "progress.value"),
            (w.LeaseProgress(lease=1), "progress"),
        )
    ),
    ("Deregister", w.DeregisterRequest(worker_id="w"), INVALID, "incarnation"),
]


def name_of(case):
    return case if isinstance(case, str) else None


async def refused(call, status, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    assert error.code() is status, error
    trailing = dict(error.trailing_metadata() or ())
    assert trailing["jq-code"] == status.name
    if field is not None:
        assert trailing["jq-field"] == field
        assert (error.details() or "").startswith(f"{field}: ")


@pytest.mark.req("jq:FR-006")
@pytest.mark.parametrize(("method", "request_", "status", "field"), CLIENT, ids=name_of)
async def test_clients(stubs, engine, method, request_, status, field):
    await refused(
        getattr(stubs.client, method)(request_, timeout=patience.longest(5)), status, field
    )
    assert (await engine.list_jobs(JobQuery())).jobs == []


@pytest.mark.parametrize(("method", "request_", "status", "field"), OPERATOR, ids=name_of)
async def test_operators(stubs, engine, method, request_, status, field):
    await refused(
        getattr(stubs.operator, method)(request_, timeout=patience.longest(5)), status, field
    )
    assert [stats.queue.name for stats in await engine.list_queues()] == ["default"]


@pytest.mark.parametrize(("method", "request_", "status", "field"), WORKER, ids=name_of)
async def test_workers(stubs, engine, method, request_, status, field):
    await stubs.worker.Register(info())
    await refused(
        getattr(stubs.worker, method)(request_, timeout=patience.longest(5)), status, field
    )
    assert [worker.info.id for worker in await engine.list_workers()] == ["w"]


@pytest.mark.parametrize("job_id", ["x", NOWHERE])
async def test_watching_what_is_not_there(stubs, job_id):
    stream = stubs.client.WatchJob(c.WatchJobRequest(job_id=job_id))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() in (INVALID, MISSING)


async def test_a_duplicate_key_is_ok_and_another_payload_is_not(stubs):
    first = await stubs.client.Submit(spec(idempotency_key="k"))
    again = await stubs.client.Submit(spec(idempotency_key="k"))
    assert not first.duplicate
    assert (again.job_id, again.duplicate) == (first.job_id, True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stubs.client.Submit(spec(idempotency_key="k", payload=b"other"))
    trailing = dict(caught.value.trailing_metadata() or ())
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert trailing["jq-code"] == "KEY_CONFLICT"
    assert trailing["jq-job-id"] == first.job_id


async def test_a_unique_key_that_a_job_has_is_ok_or_refused_as_the_client_says(stubs):
    first = await stubs.client.Submit(spec(unique=t.Unique(key="k")))
    again = await stubs.client.Submit(spec(unique=t.Unique(key="k")))
    assert not first.existing
    assert (again.job_id, again.existing, again.duplicate) == (first.job_id, True, False)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stubs.client.Submit(spec(unique=t.Unique(key="k", on_conflict="reject")))
    trailing = dict(caught.value.trailing_metadata() or ())
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert trailing["jq-code"] == "NOT_UNIQUE"
    assert trailing["jq-job-id"] == first.job_id


async def test_a_message_beyond_the_limit_is_refused_with_a_reason(stubs, engine):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stubs.client.Submit(spec(payload=b"x" * (5 * 1024 * 1024)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (caught.value.details() or "").lower()
    assert engine.batches == []


FIRST_MESSAGES = [
    w.ConnectRequest(slots=1),
    w.ConnectRequest(),
    w.ConnectRequest(hello=w.Hello(worker=info().worker), slots=1),
    w.ConnectRequest(hello=w.Hello()),
]


@pytest.mark.parametrize("first", FIRST_MESSAGES)
async def test_a_stream_begins_with_hello_alone(stubs, engine, first):
    stream = stubs.worker.Connect()
    await stream.write(first)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is INVALID
    assert await engine.list_workers() == []


async def connected(stubs, **fields):
    stream = stubs.worker.Connect()
    await stream.write(w.ConnectRequest(hello=w.Hello(worker=info(**fields).worker)))
    first = await stream.read()
    assert first.HasField("welcome")
    assert first.welcome.max_message_bytes >= 4 * 1024 * 1024
    return stream


@pytest.mark.parametrize(
    "message",
    [
        w.ConnectRequest(hello=w.Hello(worker=info().worker)),
        w.ConnectRequest(slots=3),
        w.ConnectRequest(reports=[w.ReportBatch(number=1, freed=3)]),
        w.ConnectRequest(beat=w.Beat(leases=[0])),
        w.ConnectRequest(beat=w.Beat(progress=[w.LeaseProgress(lease=1, value=-1)])),
    ],
    ids=[
        "second hello",
        "slots beyond concurrency",
        "freed beyond concurrency",
        "bad lease",
        "bad progress",
    ],
)
async def test_a_stream_that_breaks_the_rules_is_ended(stubs, message):
    stream = await connected(stubs)
    await stream.write(message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is INVALID


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (w.Report(kind=w.REPORT_KIND_STARTED, seq=1), "report.lease"),
        (w.Report(kind=w.REPORT_KIND_STARTED, seq=1, lease=2**63), "report.lease"),
        (w.Report(seq=1, lease=1), "report.kind"),
    ],
)
async def test_a_bad_report_is_answered_and_the_stream_goes_on(stubs, report, field):
    stream = await connected(stubs)
    good = w.Report(kind=w.REPORT_KIND_STARTED, seq=1, lease=1)
    batches = [
        w.ReportBatch(number=1, reports=[good, report], freed=1),
        w.ReportBatch(number=2, reports=[good]),
    ]
    await stream.write(w.ConnectRequest(reports=batches))
    acks: dict[int, w.ReportAck] = {}
    while len(acks) < 2:
        acks.update({ack.number: ack for ack in (await stream.read()).acks})
    assert (acks[1].error.code, acks[1].error.field) == ("INVALID_ARGUMENT", field)
    assert list(acks[2].accepted) == [False]
    stream.cancel()


async def test_heartbeats_on_a_stream_are_told_one_at_a_time(stubs, engine):
    """Each takes a thread, and none is left out."""
    stream = await connected(stubs)
    (link,) = engine.links
    told: list[int] = []
    others: list[bool] = []
    busy = threading.Lock()
    answer = link.pulse([])

    def pulse(leases, *_, **more):
        others.append(not busy.acquire(blocking=False))
        time.sleep(0.02)
        told.extend(leases)
        if busy.locked():
            busy.release()
        return answer

    link.pulse = pulse
    for lease in range(1, 11):
        await stream.write(w.ConnectRequest(beat=w.Beat(leases=[lease])))
    async with patience.timeout(30):
        while len(told) < 10:
            await stream.read()
    assert (told, any(others)) == (list(range(1, 11)), False)
    stream.cancel()
