"""A host: its port, its health, its incarnations, and how it ends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.core.errors import NotFound, OutcomeUnknown, Unavailable
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.remote import RemoteJobs
from jobqueue.taskqueue.grpc.servicers import JobServicer
from tests import patience, ports
from tests.taskqueue.wire import parts
from tests.taskqueue.wire.parts import FOREVER, JOB, RECORD

pytestmark = pytest.mark.usefixtures("patient")


async def test_a_taken_port(serve):
    services = await serve()
    second = ServiceHost("job")
    second.add(partial(JobServicer, parts.jobs()))
    with pytest.raises(
        Unavailable, match=f"the job service: JOB_PORT: 127.0.0.1:{services.port} is in use"
    ):
        await second.start("127.0.0.1", services.port)
    await second.stop(0)


async def test_stop_before_start_and_twice():
    host = ServiceHost("job")
    await host.stop(0)
    host.add(partial(JobServicer, parts.jobs()))
    await host.start("127.0.0.1", 0)
    await host.stop(0)
    await host.stop(0)


async def test_health(channel):
    host = ServiceHost("job")
    host.add(partial(JobServicer, parts.jobs()))
    port = await host.start("127.0.0.1", 0)
    stub: Any = health_pb2_grpc.HealthStub(channel(f"127.0.0.1:{port}"))
    for name in ("", "taskqueue.internal.v1.JobInternalService"):
        answer = await stub.Check(
            health_pb2.HealthCheckRequest(service=name), timeout=patience.longest(20)
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(
            health_pb2.HealthCheckRequest(service="other"), timeout=patience.longest(20)
        )
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await host.stop(0)


async def test_what_is_under_way_ends_within_the_grace(serve, peer):
    services = await serve(jobs=parts.jobs(get=FOREVER))
    waiting = asyncio.create_task(RemoteJobs(peer(services.target)).get(JOB))
    async with patience.timeout(20):
        while not services.calls():
            await asyncio.sleep(0.01)
        await services.host.stop(0.05)
    with pytest.raises(OutcomeUnknown, match="the service stops"):
        await waiting


@pytest.mark.req("tq:LOG")
async def test_a_service_that_was_restarted_has_lost_its_state(serve, peer, lines):
    before = await serve(port=ports.take(), jobs=parts.jobs())
    jobs = RemoteJobs(peer(before.target))
    for _ in range(3):
        await jobs.get(JOB)
    assert lines.of("state_lost") == []
    await before.host.stop(0)
    # What it says of itself comes with its failures, too.
    after = await serve(port=before.port, jobs=parts.jobs(get=NotFound("gone")))
    assert after.host.incarnation != before.host.incarnation
    async with patience.timeout(20):
        while not after.calls():
            with pytest.raises((NotFound, Unavailable)):
                await jobs.get(JOB)
    with pytest.raises(NotFound):
        await jobs.get(JOB)
    (line,) = lines.of("state_lost")
    assert line["level"] == "WARNING"
    assert line["peer"] == "job"
    assert line["message"] == ("the job service was restarted: the state in its memory is lost")


async def test_a_late_answer_of_the_one_before_is_no_restart(serve, peer, lines):
    """Calls overtake each other; only what was never seen is new."""
    services = await serve()
    one = peer(services.target)
    for incarnation in ("a", "b", "a", "b", "c", "b"):
        one._answered((("tq-incarnation", incarnation),))
    assert len(lines.of("state_lost")) == 2
    assert await RemoteJobs(one).get(JOB) == RECORD
