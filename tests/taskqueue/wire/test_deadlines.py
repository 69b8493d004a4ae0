"""Deadlines: the defaults, what is left of them, and nothing that can stretch them."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import pytest

from jobqueue.core.errors import DeadlineExceeded, OutcomeUnknown, Unavailable
from jobqueue.core.waiting import deadline
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.pb import taskqueue_public_pb2_grpc as public_grpc
from jobqueue.taskqueue.components.gateway import Gateway
from jobqueue.taskqueue.components.model import Actor, Listing, Status
from jobqueue.taskqueue.grpc import peer as peer_module
from jobqueue.taskqueue.grpc import remote as remote_module
from jobqueue.taskqueue.grpc.remote import (
    RemoteCoordination,
    RemoteJobs,
    RemoteQueue,
    RemoteResults,
)
from tests import patience
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.drawing import Rng
from tests.taskqueue.wire.parts import ENVELOPE, FOREVER, JOB, REPORT, SPEC


def asked_of(monkeypatch, module):
    """The most that each call of a module may take, before what its caller has left."""
    most: list[float] = []

    def note(seconds: float) -> float:
        most.append(seconds)
        return seconds

    monkeypatch.setattr(module, "remaining", note)
    return most


@pytest.mark.req("tq:DEADLINE")
async def test_the_internal_defaults(serve, peer, monkeypatch):
    services = await serve()
    most = asked_of(monkeypatch, peer_module)
    jobs = RemoteJobs(peer(services.target))
    await jobs.create(SPEC, "", request_id="r")
    await jobs.delete_if(JOB, Status.QUEUED, request_id="r")
    await jobs.get(JOB)
    await jobs.list(Listing())
    await jobs.transition(JOB, Status.QUEUED, Status.CANCELED, actor="gateway", request_id="r")
    await jobs.request_cancel(JOB, "", request_id="r")
    queue = RemoteQueue(peer(services.target, Actor.COORDINATOR))
    await queue.enqueue(JOB, 1, rescue=True, request_id="r")
    await queue.dequeue("w", request_id="r")
    await queue.remove(JOB, request_id="r")
    await RemoteResults(peer(services.target, Actor.COORDINATOR)).store(ENVELOPE, request_id="r")
    await RemoteResults(peer(services.target)).get(JOB)
    coordination = RemoteCoordination(peer(services.target, Actor.WORKER))
    await coordination.report(REPORT, request_id="r")
    assert most == [1.0] * 12
    most.clear()
    await coordination.fetch("w", request_id="r")
    await coordination.heartbeat("w", 1, 1)
    assert most == [1.5, 1.0]


@pytest.mark.req("tq:DEADLINE")
async def test_the_client_defaults(serve, client, monkeypatch):
    services = await serve()
    most = asked_of(monkeypatch, remote_module)
    remote = client(services.target)
    await remote.submit(SPEC, "")
    await remote.cancel(JOB, "")
    await remote.status(JOB)
    await remote.result(JOB)
    await remote.list(Listing())
    assert most == [3.0, 3.0, 1.0, 1.0, 1.0]
    await remote.submit(SPEC, "", timeout=9.0)
    assert most[-1] == 9.0


@pytest.mark.req("tq:DEADLINE")
async def test_a_service_knows_what_its_caller_has_left(serve, peer, client):
    services = await serve()
    rounded = 1.05  # by gRPC, upwards, when it sends them
    await RemoteJobs(peer(services.target)).get(JOB)
    assert 0 < services.parts["jobs"].left[0] <= 1.0 * rounded
    with deadline(0.6):
        await RemoteJobs(peer(services.target)).get(JOB)
    assert 0 < services.parts["jobs"].left[1] <= 0.6 * rounded
    with deadline(30):
        await RemoteJobs(peer(services.target)).get(JOB)
    assert 0 < services.parts["jobs"].left[2] <= 1.0 * rounded
    await client(services.target).status(JOB, timeout=20.0)
    assert 1.0 < services.parts["public"].left[0] <= 20.0 * rounded
    assert services.parts["public"].methods == ["GetJobStatus"]


@pytest.mark.req("tq:DEADLINE")
async def test_a_caller_that_gives_no_deadline_sets_none(serve, channel):
    services = await serve()
    # A bare stub: no client of ours is without a deadline.
    bare = public_grpc.TaskQueuePublicServiceStub(channel(services.target))
    await bare.GetJobStatus(public.GetJobStatusRequest(job_id=JOB))
    assert services.parts["public"].left == [parts.LONG]


@pytest.mark.req("tq:DEADLINE")
async def test_without_time_nothing_is_sent(serve, peer, client):
    services = await serve()
    with deadline(0.0):
        with pytest.raises(DeadlineExceeded, match="the job service"):
            await RemoteJobs(peer(services.target)).get(JOB)
        with pytest.raises(DeadlineExceeded):
            await client(services.target).status(JOB)
    assert services.calls() == []


@pytest.mark.req("tq:RETRY", "tq:DEADLINE")
async def test_no_pause_goes_beyond_the_deadline(serve, peer):
    """A failure is reported at once if the time would be up before the next attempt."""
    services = await serve(jobs=parts.jobs(get=Unavailable("down")))
    rng = Rng(1_000.0)  # a pause of 100 s, though none is that long
    async with patience.timeout(30):
        with pytest.raises(Unavailable, match="down"):
            await RemoteJobs(peer(services.target, rng=rng)).get(JOB)
    assert services.calls() == ["get"]
    assert len(rng.ranges) == 1


async def ends_in_time(seconds, error, call):
    """It fails with that error, and not before its time was up nor much later."""
    began = time.monotonic()
    async with patience.timeout(30):
        with pytest.raises(error):
            await call
    return time.monotonic() - began >= seconds * 0.9


@pytest.mark.req("tq:DEADLINE")
async def test_a_server_that_does_not_answer(serve, peer, client):
    services = await serve(
        jobs=parts.jobs(get=FOREVER),
        public=parts.task_queue(status=FOREVER),
        coordination=parts.coordination(fetch=FOREVER),
    )
    with deadline(0.3):
        assert await ends_in_time(0.3, DeadlineExceeded, RemoteJobs(peer(services.target)).get(JOB))
    worker = RemoteCoordination(peer(services.target, Actor.WORKER))
    assert await ends_in_time(1.5, OutcomeUnknown, worker.fetch("w", request_id="r"))
    remote = client(services.target)
    assert await ends_in_time(0.3, DeadlineExceeded, remote.status(JOB, timeout=0.3))


@pytest.mark.req("tq:DEADLINE", "tq:CODES")
async def test_a_client_that_has_time_left_is_told_that_a_service_is_unavailable(
    serve, peer, channel
):
    """DEADLINE_EXCEEDED is for the time of the caller, not for that of a service behind it."""
    hung = await serve(jobs=parts.jobs(get=FOREVER, create=FOREVER, transition=FOREVER))
    owners = peer(hung.target)
    gateway = Gateway(RemoteJobs(owners), RemoteQueue(owners), RemoteResults(owners))
    services = await serve(public=gateway)
    stub = public_grpc.TaskQueuePublicServiceStub(channel(services.target))
    status = public.GetJobStatusRequest(job_id=JOB)
    submit = public.SubmitJobRequest(spec=public.JobSpec(job_type="t"))
    for call in (stub.GetJobStatus(status, timeout=60), stub.SubmitJob(submit, timeout=60)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the job service did not answer within 1 s"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetJobStatus(status, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await gateway.stop()


@pytest.mark.req("tq:DEADLINE")
async def test_a_port_that_takes_connections_and_says_nothing(peer):
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with deadline(0.3):
        call = RemoteJobs(peer(f"127.0.0.1:{port}")).get(JOB)
        assert await ends_in_time(0.3, (DeadlineExceeded, Unavailable), call)
    for writer in writers:
        writer.close()
    server.close()
    await server.wait_closed()
