"""The caller-to-method matrix, for every caller and every method, at the service that is called."""

from __future__ import annotations

import itertools

import pytest

from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.model import Status
from jobqueue.taskqueue.grpc.callers import MATRIX
from jobqueue.taskqueue.grpc.remote import RemoteQueue
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.parts import JOB, as_caller
from tests.taskqueue.wire.requests import REQUESTS, ask

pytestmark = pytest.mark.req("tq:MATRIX")

# The document's table, and what ADR 14 adds: the EnqueueJob that the document's rescue rule needs,
# and the ListJobRecords that finds jobs which no worker has.
ALLOWED = {
    "": "SubmitJob GetJobStatus GetJobResult CancelJob ListJobs",
    "gateway": "CreateJob DeleteJobIfStatus GetJobRecord ListJobRecords SetCancelRequested"
    " TransitionJobStatus EnqueueJob RemoveJobIfPresent GetResult StoreResult",
    "coordinator": "DequeueJob RemoveJobIfPresent TransitionJobStatus GetJobRecord StoreResult"
    " EnqueueJob ListJobRecords",
    "worker": "WorkerHeartbeat FetchWork ReportWorkOutcome",
}
PAIRS = list(itertools.product(ALLOWED, REQUESTS))


def test_the_tests_know_every_method():
    methods = [
        method.name
        for file in (public, internal)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert len(methods) == len(set(methods)) == 19
    assert set(methods) == set(REQUESTS)
    assert set().union(*MATRIX.values()) == set(methods)


@pytest.mark.req("tq:LOCK-21")
@pytest.mark.parametrize(
    ("caller", "method"), PAIRS, ids=[f"{c or 'client'}-{m}" for c, m in PAIRS]
)
async def test_each_pair(serve, channel, lines, caller, method):
    services = await serve()
    purpose = "rescue" if (caller, method) == ("coordinator", "EnqueueJob") else ""
    changes = {"actor": caller} if method == "TransitionJobStatus" else {}
    code, text = await ask(
        channel(services.target), method, as_caller(caller, "r1", purpose), **changes
    )
    refused = lines.of("caller_refused")
    if method in ALLOWED[caller].split():
        assert (code, len(services.calls()), refused) == ("OK", 1, [])
        return
    assert (code, services.calls()) == ("PERMISSION_DENIED", [])
    assert text == f"the {caller or 'client'} may not call {method}"
    (line,) = refused
    assert line["method"] == method
    assert line["grpc_code"] == "PERMISSION_DENIED"
    assert line["caller"] == (caller or "client")
    assert line["message"] == text
    assert lines.of("rpc_failed") == []  # one line for one answer


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ((("tq-caller", "root"),), "not one of: client, gateway, coordinator, worker"),
        ((("tq-caller", "Gateway"),), "not one of"),
        ((("tq-caller", "gateway"), ("tq-caller", "worker")), "sent 2 times"),
    ],
)
@pytest.mark.parametrize("method", ["GetJobRecord", "GetJobStatus", "FetchWork"])
async def test_a_caller_that_is_nobody(serve, channel, lines, method, metadata, why):
    services = await serve()
    code, text = await ask(channel(services.target), method, metadata)
    assert (code, services.calls()) == ("PERMISSION_DENIED", [])
    assert why in text
    assert len(lines.of("caller_refused")) == 1


async def test_a_client_may_say_that_it_is_one(serve, channel):
    services = await serve()
    assert await ask(channel(services.target), "ListJobs", as_caller("client")) == ("OK", "")
    code, _ = await ask(channel(services.target), "GetJobRecord", as_caller("client"))
    assert code == "PERMISSION_DENIED"


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
async def test_the_gateway_cancels_what_is_queued_and_nothing_else(
    serve, channel, lines, before, after
):
    services = await serve()
    request = internal.TransitionJobStatusRequest(
        job_id=JOB, expected_from_status=before.value, to_status=after.value, actor="gateway"
    )
    code, _ = await ask(
        channel(services.target), "TransitionJobStatus", as_caller("gateway"), request
    )
    if (before, after) == (Status.QUEUED, Status.CANCELED):
        assert (code, services.calls()) == ("OK", ["transition"])
    else:
        assert (code, services.calls()) == ("PERMISSION_DENIED", [])
        assert len(lines.of("caller_refused")) == 1


@pytest.mark.parametrize("caller", ["gateway", "coordinator"])
@pytest.mark.parametrize("actor", ["", "gateway", "coordinator", "worker"])
async def test_the_actor_of_a_transition_is_the_caller(serve, channel, lines, caller, actor):
    services = await serve()
    code, _ = await ask(
        channel(services.target), "TransitionJobStatus", as_caller(caller), actor=actor
    )
    if actor == caller:
        assert (code, services.calls()) == ("OK", ["transition"])
    else:
        assert (code, services.calls()) == ("PERMISSION_DENIED", [])
        assert len(lines.of("caller_refused")) == 1


@pytest.mark.parametrize("caller", ["gateway", "coordinator"])
@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.CANCELED])
async def test_the_gateway_stores_nothing_but_cancellations(serve, channel, caller, status):
    services = await serve()
    code, _ = await ask(
        channel(services.target),
        "StoreResult",
        as_caller(caller),
        terminal_status=status.value,
    )
    if caller == "coordinator" or status is Status.CANCELED:
        assert (code, services.calls()) == ("OK", ["store"])
    else:
        assert (code, services.calls()) == ("PERMISSION_DENIED", [])


@pytest.mark.parametrize("there", [True, False])
async def test_a_look_queues_nothing(serve, channel, peer, there):
    services = await serve(queue=parts.queue(contains=there))
    assert await RemoteQueue(peer(services.target)).contains(JOB) is there
    assert services.parts["queue"].calls == [("contains", (JOB,), {})]
    code, _ = await ask(
        channel(services.target), "EnqueueJob", as_caller("coordinator", "", "look")
    )
    assert code == "PERMISSION_DENIED"


@pytest.mark.parametrize("purpose", ["", "rescue", "submit"])
async def test_the_coordinator_enqueues_to_rescue_and_for_nothing_else(serve, channel, purpose):
    services = await serve()
    code, _ = await ask(
        channel(services.target), "EnqueueJob", as_caller("coordinator", "", purpose)
    )
    if purpose == "rescue":
        assert code == "OK"
        assert services.parts["queue"].calls == [
            ("enqueue", (JOB, 0), {"rescue": True, "request_id": ""})
        ]
    else:
        assert (code, services.calls()) == ("PERMISSION_DENIED", [])
