"""The document's table of status codes, and bad input: a message with the field, and no effect."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from jobqueue.core.errors import (
    AlreadyExists,
    Code,
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    JobFailed,
    KeyConflict,
    NotFound,
    NotUnique,
    OutcomeUnknown,
    PermissionDenied,
    QueueFull,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.model import Actor, Listing, Status
from jobqueue.taskqueue.grpc.errors import STATUS
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.remote import RemoteJobs
from tests import patience
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.parts import JOB, SPEC, as_caller
from tests.taskqueue.wire.requests import ask

pytestmark = [pytest.mark.req("tq:CODES"), pytest.mark.usefixtures("patient")]

TABLE = [
    (InvalidArgument("page_size", "must be less"), "INVALID_ARGUMENT"),
    (NotFound("there is no job"), "NOT_FOUND"),
    (KeyConflict("another payload", JOB), "FAILED_PRECONDITION"),
    (NotUnique("taken", JOB), "INTERNAL"),
    (QueueFull("full", 2.5), "RESOURCE_EXHAUSTED"),
    (RateLimited("too fast", 0.5), "RESOURCE_EXHAUSTED"),
    (Unavailable("no store"), "UNAVAILABLE"),
    (OutcomeUnknown("perhaps"), "UNAVAILABLE"),
    (DeadlineExceeded("too late"), "DEADLINE_EXCEEDED"),
    (Unauthenticated("who?"), "UNAUTHENTICATED"),
    (PermissionDenied("not you"), "PERMISSION_DENIED"),
    (AlreadyExists("taken"), "INTERNAL"),
    (Conflict("not now"), "INTERNAL"),
    (JobFailed(JOB, "POISON", "boom"), "INTERNAL"),
    (Internal("a defect"), "INTERNAL"),
]
ERRORS = [error for error, _ in TABLE]


def test_the_table_is_complete():
    assert set(STATUS) == set(Code) == {error.code for error in ERRORS}


@pytest.mark.parametrize(("error", "status"), TABLE, ids=lambda one: getattr(one, "code", one))
@pytest.mark.parametrize(
    ("method", "part", "answer", "caller"),
    [("GetJobStatus", "public", "status", ""), ("GetJobRecord", "jobs", "get", "gateway")],
)
async def test_the_status_of_each_error(
    serve, channel, error, status, method, part, answer, caller
):
    make = {"public": parts.task_queue, "jobs": parts.jobs}[part]
    services = await serve(**{part: make(**{answer: error})})
    code, text = await ask(channel(services.target), method, as_caller(caller))
    assert (code, text) == (status, error.message)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
async def test_our_client_raises_what_the_server_raised(serve, client, error):
    services = await serve(public=parts.task_queue(submit=error))
    with pytest.raises(type(error)) as caught:
        await client(services.target).submit(SPEC, "k")
    assert vars(caught.value) == vars(error)


async def test_a_defect_is_internal_and_says_nothing_of_itself(serve, channel, lines):
    services = await serve(public=parts.task_queue(status=ZeroDivisionError("secret path")))
    code, text = await ask(channel(services.target), "GetJobStatus")
    assert (code, text) == ("INTERNAL", "internal error; the server's log has the details")
    (line,) = lines.of("rpc_failed")
    assert line["level"] == "ERROR"
    assert line["exception"]["type"] == "ZeroDivisionError"


FOREIGN = [
    ("INVALID_ARGUMENT", InvalidArgument),
    ("NOT_FOUND", NotFound),
    ("FAILED_PRECONDITION", KeyConflict),
    ("RESOURCE_EXHAUSTED", QueueFull),
    ("UNAVAILABLE", Unavailable),
    ("CANCELLED", Unavailable),
    ("DEADLINE_EXCEEDED", DeadlineExceeded),
    ("PERMISSION_DENIED", PermissionDenied),
    ("UNIMPLEMENTED", Internal),
    ("UNKNOWN", Internal),
]


@pytest.mark.parametrize(("status", "error"), FOREIGN, ids=[name for name, _ in FOREIGN])
async def test_a_server_in_another_language(serve, client, peer, status, error):
    """It sends the status alone."""

    class Aborts(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, handler_call_details):
            async def abort(request, context):
                await context.abort(grpc.StatusCode[status], "because")

            return grpc.unary_unary_rpc_method_handler(abort)

    services = await serve(host=ServiceHost("other", interceptors=[Aborts()]))
    with pytest.raises(error):
        await client(services.target).submit(SPEC, "k")
    # A service tells its own caller of its own time alone.
    with pytest.raises(Unavailable if error is DeadlineExceeded else error):
        await RemoteJobs(peer(services.target)).create(SPEC, "", request_id="")


BAD_ID = "is not a UUID"


def number(value: int) -> Any:
    """A value of an enumeration, whether it has it or not."""
    return value


BAD = [
    ("SubmitJob", public.SubmitJobRequest(), "spec: is required"),
    ("GetJobStatus", public.GetJobStatusRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
    ("GetJobStatus", public.GetJobStatusRequest(), f"job_id: '' {BAD_ID}"),
    ("GetJobResult", public.GetJobResultRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
    ("CancelJob", public.CancelJobRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
    (
        "ListJobs",
        public.ListJobsRequest(status_filter=[number(1), number(0)]),
        "status_filter: 0 is not one of",
    ),
    (
        "ListJobs",
        public.ListJobsRequest(status_filter=[number(6)]),
        "status_filter: 6 is not one of",
    ),
    ("ListJobs", public.ListJobsRequest(sort=number(3)), "sort: 3 is not one of"),
    *(
        (
            "ListJobs",
            public.ListJobsRequest(page=public.PageRequest(page_token=token)),
            "page.page_token: ",
        )
        for token in ("-1", "+1", "1.0", "abc", " 1", "٣", "9" * 19)
    ),
    ("CreateJob", internal.CreateJobRequest(), "spec: is required"),
    (
        "DeleteJobIfStatus",
        internal.DeleteJobIfStatusRequest(job_id=JOB),
        "expected_status: 0 is not one of",
    ),
    (
        "DeleteJobIfStatus",
        internal.DeleteJobIfStatusRequest(job_id="7", expected_status=number(1)),
        f"job_id: '7' {BAD_ID}",
    ),
    ("GetJobRecord", internal.GetJobRecordRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
    (
        "ListJobRecords",
        internal.ListJobRecordsRequest(status_filter=[number(9)]),
        "status_filter: 9",
    ),
    (
        "SetCancelRequested",
        internal.SetCancelRequestedRequest(job_id=JOB),
        "cancel_requested: must be true",
    ),
    ("EnqueueJob", internal.EnqueueJobRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
    ("DequeueJob", internal.DequeueJobRequest(), "worker_id: must have 1 to 255"),
    ("RemoveJobIfPresent", internal.RemoveJobIfPresentRequest(), f"job_id: '' {BAD_ID}"),
    (
        "ReportWorkOutcome",
        internal.ReportWorkOutcomeRequest(worker_id="w", job_id=JOB),
        "outcome: 0 is not one of",
    ),
    (
        "ReportWorkOutcome",
        internal.ReportWorkOutcomeRequest(worker_id="w", job_id=JOB, outcome=number(4)),
        "outcome: 4 is not one of",
    ),
    ("StoreResult", internal.StoreResultRequest(job_id=JOB), "terminal_status: 0 is not one of"),
    ("GetResult", internal.GetResultRequest(job_id="7"), f"job_id: '7' {BAD_ID}"),
]
CALLERS = {"DequeueJob": "coordinator", "ReportWorkOutcome": "worker"}


@pytest.mark.parametrize(
    ("method", "request_", "message"), BAD, ids=[f"{m}-{text[:24]}" for m, _, text in BAD]
)
async def test_bad_input(serve, channel, method, request_, message):
    services = await serve()
    internally = not isinstance(request_, tuple(_public_requests()))
    caller = CALLERS.get(method, "gateway") if internally else ""
    code, text = await ask(channel(services.target), method, as_caller(caller), request_)
    assert (code, services.calls()) == ("INVALID_ARGUMENT", [])
    assert text.startswith(message)


def _public_requests():
    return [public.__dict__[name] for name in public.DESCRIPTOR.message_types_by_name]


@pytest.mark.parametrize("caller", ["", "gateway"])
async def test_bytes_that_are_no_message(serve, channel, lines, caller):
    services = await serve()
    call = channel(services.target).unary_unary(
        "/taskqueue.internal.v1.JobInternalService/TransitionJobStatus"
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff\xff", timeout=patience.longest(20), metadata=as_caller(caller))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == (
        "request: is not a valid taskqueue.internal.v1.TransitionJobStatusRequest message"
    )
    assert services.calls() == []
    assert len(lines.of("rpc_failed")) == 1


@pytest.mark.req("tq:LOCK-30")
@pytest.mark.parametrize("caller", ["gateway", "coordinator"])
@pytest.mark.parametrize(
    ("before", "after", "field"),
    [(0, 5, "expected_from_status"), (99, 5, "expected_from_status"), (1, 0, "to_status")],
)
async def test_a_transition_names_both_its_ends(serve, channel, caller, before, after, field):
    services = await serve()
    request = internal.TransitionJobStatusRequest(
        job_id=JOB, expected_from_status=before, to_status=after, actor=caller
    )
    code, text = await ask(
        channel(services.target), "TransitionJobStatus", as_caller(caller), request
    )
    assert (code, services.calls()) == ("INVALID_ARGUMENT", [])
    assert text.startswith(f"{field}: ")


async def test_a_request_id_has_a_bound(serve, channel):
    services = await serve()
    there = channel(services.target)
    assert (await ask(there, "CreateJob", as_caller("gateway", "x" * 128)))[0] == "OK"
    code, text = await ask(there, "CreateJob", as_caller("gateway", "x" * 129))
    assert (code, services.calls()) == ("INVALID_ARGUMENT", ["create"])
    assert text == "tq-request-id: must have at most 128 characters"


@pytest.mark.parametrize("other", [JOB.upper(), f" {JOB}", f"{JOB}\n"])
async def test_ids_are_taken_in_one_spelling(serve, channel, other):
    services = await serve()
    code, text = await ask(channel(services.target), "GetJobStatus", job_id=other)
    assert (code, services.calls()) == ("INVALID_ARGUMENT", [])
    assert BAD_ID in text


async def test_a_message_that_is_too_large(serve, peer):
    services = await serve(host=ServiceHost("small", max_message_bytes=1))  # at least 4 MiB
    jobs = RemoteJobs(peer(services.target))
    with pytest.raises(InvalidArgument, match=r"request: has 41943\d\d bytes, at most 4194304"):
        await jobs.transition(
            JOB,
            Status.QUEUED,
            Status.CANCELED,
            actor=Actor.GATEWAY,
            reason="x" * 2**22,
            request_id="r",
        )
    assert services.calls() == []
    assert await jobs.list(Listing()) == parts.PAGE  # the connection is as it was
