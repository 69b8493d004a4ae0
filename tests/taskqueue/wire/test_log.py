"""Every answer that is not OK is one line of JSON, with the fields that the document asks for."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from jobqueue.core.errors import DeadlineExceeded, KeyConflict, NotFound, QueueFull, Unavailable
from jobqueue.core.waiting import deadline
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.owners import JobLedger
from jobqueue.taskqueue.grpc.host import ServiceHost
from tests import patience
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.parts import FOREVER, JOB, SPEC, as_caller
from tests.taskqueue.wire.requests import ask

pytestmark = [pytest.mark.req("tq:LOG", "tq:LOCK-34"), pytest.mark.usefixtures("patient")]

REQUIRED = {"ts_ms", "level", "service", "method", "event", "grpc_code", "message"}
ERRORS = [NotFound("there is no job"), Unavailable("no store"), QueueFull("full\nto the 100% brim")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
async def test_a_line_for_each_answer(serve, channel, lines, error):
    services = await serve(public=parts.task_queue(cancel=error))
    code, text = await ask(channel(services.target), "CancelJob")
    (line,) = lines.of("rpc_failed")
    assert set(line) >= REQUIRED
    assert isinstance(line["ts_ms"], int)
    assert line["service"] == "gateway"
    assert (line["method"], line["grpc_code"]) == ("CancelJob", code)
    assert line["message"] == text == error.message
    assert (line["job_id"], line["caller"]) == (JOB, "client")
    assert line["level"] == "WARNING"
    assert line["latency_ms"] >= 0
    assert "request_id" not in line


async def test_what_an_internal_call_carries_is_in_it(serve, channel, lines):
    services = await serve(
        coordination=parts.coordination(report=NotFound("no")),
        jobs=parts.jobs(create=KeyConflict("another spec", JOB)),
    )
    there = channel(services.target)
    await ask(there, "ReportWorkOutcome", as_caller("worker", "id-1"))
    await ask(there, "CreateJob", as_caller("gateway", "id-2"))
    report, create = lines.of("rpc_failed")
    assert (report["caller"], report["request_id"]) == ("worker", "id-1")
    assert (report["worker_id"], report["job_id"]) == ("w", JOB)
    assert (create["caller"], create["request_id"]) == ("gateway", "id-2")
    assert create["job_id"] == JOB  # which the key belongs to


async def test_what_a_part_has_to_say_carries_the_method_of_the_call(serve, channel, lines):
    services = await serve(jobs=JobLedger())
    invalid = {"expected_from_status": public.DONE, "to_status": public.RUNNING}
    await ask(
        channel(services.target),
        "TransitionJobStatus",
        as_caller("coordinator"),
        actor="coordinator",
        **invalid,
    )
    (line,) = lines.of("invalid_transition")
    assert set(line) >= REQUIRED - {"grpc_code"}
    assert (line["method"], line["job_id"]) == ("TransitionJobStatus", JOB)


async def test_what_a_caller_sends_is_cut_to_size(serve, channel, lines):
    services = await serve()
    await ask(channel(services.target), "GetJobStatus", job_id="x" * 5000)
    (line,) = lines.of("rpc_failed")
    assert line["grpc_code"] == "INVALID_ARGUMENT"
    assert len(line["job_id"]) == 80
    assert len(line["message"]) < 300


async def test_no_line_for_what_went_well(serve, client, lines):
    services = await serve(public=parts.task_queue(result=None))
    remote = client(services.target)
    await remote.submit(SPEC, "k")
    await remote.result(JOB)  # not ready: a soft outcome
    assert lines.of("rpc_failed", "caller_refused") == []


async def test_a_caller_that_did_not_wait(serve, client, lines):
    services = await serve(public=parts.task_queue(status=FOREVER))
    with deadline(0.2), pytest.raises(DeadlineExceeded):
        await client(services.target).status(JOB)
    async with patience.timeout(20):
        while not (found := lines.of("rpc_failed")):
            await asyncio.sleep(0.01)
    assert found[0]["method"] == "GetJobStatus"
    assert found[0]["grpc_code"] in ("DEADLINE_EXCEEDED", "CANCELLED")
    assert found[0]["job_id"] == JOB


@pytest.mark.req("tq:CODES")
async def test_a_message_that_is_too_large(serve, channel, lines):
    services = await serve()
    request = public.CancelJobRequest(job_id=JOB, reason="x" * 2**22)
    code, text = await ask(channel(services.target), "CancelJob", (), request)
    assert (code, services.calls()) == ("INVALID_ARGUMENT", [])
    size = request.ByteSize()
    assert text == f"request: has {size} bytes, at most 4194304 are allowed"
    (line,) = lines.of("rpc_failed")
    assert (line["method"], line["grpc_code"], line["message"]) == ("CancelJob", code, text)


@pytest.mark.req("tq:CODES")
async def test_a_message_with_too_long_a_list(serve, channel, lines):
    services = await serve()
    request = public.ListJobsRequest(status_filter=[public.DONE] * 1000)
    code, _ = await ask(channel(services.target), "ListJobs", (), request)
    assert (code, services.calls()) == ("INVALID_ARGUMENT", [])
    (line,) = lines.of("rpc_failed")
    assert (line["method"], line["grpc_code"]) == ("ListJobs", code)


@pytest.mark.req("tq:CODES")
@pytest.mark.parametrize("grace", [0, 0.05])
async def test_a_call_that_is_cut_off_by_the_stop(serve, channel, lines, grace):
    services = await serve(public=parts.task_queue(submit=FOREVER))
    waiting = asyncio.create_task(ask(channel(services.target), "SubmitJob"))
    async with patience.timeout(20):
        while not services.calls():
            await asyncio.sleep(0.01)
    await services.host.stop(grace)
    code, text = await waiting
    assert code == "UNAVAILABLE"
    (line,) = lines.of("rpc_failed")
    assert (line["method"], line["grpc_code"], line["message"]) == ("SubmitJob", code, text)


async def test_a_method_that_there_is_not(serve, channel, lines):
    services = await serve()
    call = channel(services.target).unary_unary("/taskqueue.v1.TaskQueuePublicService/DropAll")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", timeout=patience.longest(20))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    (line,) = lines.of("rpc_failed")
    assert line["grpc_code"] == "UNIMPLEMENTED"
    assert line["method"] == "unknown"  # the name is not read: it may be no text


async def test_calls_are_counted_by_their_full_name(serve, channel):
    counted: list[tuple[str, str]] = []
    host = ServiceHost("test", on_call=lambda method, status, _: counted.append((method, status)))
    services = await serve(host=host, jobs=parts.jobs(get=NotFound("no")))
    there = channel(services.target)
    await ask(there, "GetJobStatus")
    await ask(there, "GetJobRecord", as_caller("gateway"))
    await ask(there, "GetJobRecord")
    assert counted == [
        ("/taskqueue.v1.TaskQueuePublicService/GetJobStatus", "OK"),
        ("/taskqueue.internal.v1.JobInternalService/GetJobRecord", "NOT_FOUND"),
        ("/taskqueue.internal.v1.JobInternalService/GetJobRecord", "PERMISSION_DENIED"),
    ]
