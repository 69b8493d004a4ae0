"""The face itself: health, reflection, counting, limits, its end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.server import SERVICES, GrpcFace
from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.core.job import JobSpec
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

NOWHERE = "0b4ee0a2-0000-4000-8000-000000000000"


async def test_every_service_is_healthy(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", *SERVICES):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def ask_for_services(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        (answer,) = stub.ServerReflectionInfo(iter(asked))
        return {service.name for service in answer.list_services_response.service}


async def test_reflection_is_opt_in(engine, serve):
    _, closed = await serve(engine)
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        await asyncio.to_thread(ask_for_services, closed)
    _, open_ = await serve(engine, reflection=True)
    assert set(SERVICES) <= await asyncio.to_thread(ask_for_services, open_)


async def test_every_call_is_counted(engine, serve, worker_info):
    counted = []
    face, port = await serve(engine, on_call=lambda *call: counted.append(call))
    backend = GrpcBackend(f"127.0.0.1:{port}")
    await backend.health()
    with pytest.raises(NotFound):
        await backend.get(NOWHERE)
    link = await backend.connect(worker_info(), RecordingInbox())
    await link.close()
    await backend.stop()
    await face.stop(1.0)
    named = {(method, status) for method, status, _ in counted}
    assert ("/jq.v1.OperatorService/GetHealth", "OK") in named
    assert ("/jq.v1.ClientService/GetJob", "NOT_FOUND") in named
    assert ("/jq.v1.WorkerService/Deregister", "OK") in named
    assert any(method == "/jq.v1.WorkerService/Connect" for method, _ in named)
    assert all(0 <= seconds < 10 for _, _, seconds in counted)


async def test_a_taken_port_is_an_error(engine, serve):
    _, port = await serve(engine)
    face = GrpcFace(engine)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        await face.start("127.0.0.1", port)
    await face.stop()


async def test_the_limit_follows_the_payload_limit(engine, serve):
    _, port = await serve(engine, max_message_bytes=8 * 1024 * 1024)
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)
        for size, status in ((7, "INVALID_ARGUMENT"), (9, "RESOURCE_EXHAUSTED")):
            spec = types_pb2.JobSpec(payload=b"x" * (size * 1024 * 1024))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Submit(client_pb2.SubmitRequest(spec=spec))
            assert caught.value.code().name == status


async def test_stop_ends_waits_and_streams_at_once(engine, serve, worker_info):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=0.5)
    (result,) = await backend.submit([JobSpec(payload=b"x", delay=3600.0)])
    job_id = result.unwrap()
    events = backend.watch(job_id)
    await anext(events)
    waiting = asyncio.create_task(backend.wait(job_id, 60.0))
    watching = asyncio.ensure_future(anext(events))
    link = await backend.connect(worker_info(), RecordingInbox())
    link.grant(2)
    await engine.until(lambda: engine.links[-1].granted == 2)
    limit = patience.Limit(3.0)
    await face.stop(10.0)
    await face.stop(10.0)
    assert not limit.over
    assert engine.links[-1].drains >= 1
    assert not engine.links[-1].closed
    results = await asyncio.gather(waiting, watching, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results), results
    await backend.stop()


async def test_calls_go_on_over_a_restart(engine, serve):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(10))
    (result,) = await backend.submit([JobSpec(payload=b"x", delay=3600.0)])
    job_id = result.unwrap()
    events = backend.watch(job_id)
    seen = [await anext(events)]
    waiting = asyncio.create_task(backend.wait(job_id, 60.0))
    await asyncio.sleep(0.05)
    await face.stop(1.0)
    await serve(engine, port)
    await engine.cancel(job_id)
    seen += [event async for event in events]
    assert [event.version for event in seen] == [1, 2]  # nothing twice, nothing left out
    assert (await waiting).version == 2
    await backend.stop()


async def test_the_backend_may_be_stopped_before_its_start_and_twice():
    backend = GrpcBackend("127.0.0.1:1")
    await backend.stop()
    await backend.start()
    await backend.stop()
    await backend.stop()


async def test_a_face_may_be_stopped_before_its_start(engine):
    await GrpcFace(engine).stop()


async def test_a_call_under_way_when_the_client_stops(engine, port):
    backend = GrpcBackend(f"127.0.0.1:{port}")
    (result,) = await backend.submit([JobSpec(payload=b"x", delay=3600.0)])
    waiting = asyncio.create_task(backend.wait(result.unwrap(), 60.0))
    await asyncio.sleep(0.1)
    await backend.stop()
    with pytest.raises(Unavailable):
        await waiting


async def test_a_watch_under_way_when_the_client_stops(engine, port):
    backend = GrpcBackend(f"127.0.0.1:{port}")
    (result,) = await backend.submit([JobSpec(payload=b"x", delay=3600.0)])
    events = backend.watch(result.unwrap())
    await anext(events)
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.1)
    await backend.stop()
    await asyncio.wait({following}, timeout=patience.longest(10))
    assert not following.cancelled()  # nobody asked for that
    with pytest.raises(Unavailable):
        await following
