"""What a server that stops does for its workers: it waits for those that stop as well."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.pb.jq.v1 import types_pb2 as t
from jobqueue.pb.jq.v1 import worker_pb2 as w
from jobqueue.pb.jq.v1 import worker_pb2_grpc
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

ME: dict[str, Any] = {"worker_id": "simple", "incarnation": 77}
LONG = patience.longest(20)


def succeeded(job):
    return Transition.succeeded(job.seq, job.lease, b"ok", 0.01)


async def stopping(engine, face, within=LONG) -> asyncio.Task[None]:
    """As the server does it."""
    face.begin_stop()
    return asyncio.create_task(engine.see_workers_off(face.connected, within))


async def stream_worker(backend, worker_info, id="w1"):
    inbox = RecordingInbox()
    link = await backend.connect(worker_info(id=id), inbox)
    link.grant(2)
    return link, inbox


@pytest.mark.req("jq:NFR-014")
async def test_a_worker_that_drains_reports_and_deregisters_while_clients_are_refused(
    engine, serve, worker_info
):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    (job_id,) = [result.unwrap() for result in await backend.submit([JobSpec(payload=b"x")])]
    link, inbox = await stream_worker(backend, worker_info)
    await inbox.until(lambda inbox: inbox.jobs)
    await link.drain()
    seeing_off = await stopping(engine, face)
    stranger = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    for refused in (backend.get(job_id), stranger.submit([JobSpec(payload=b"y")])):
        with pytest.raises(Unavailable):
            await refused
    await stranger.stop()
    lease = inbox.jobs[0].lease
    pulse = await asyncio.to_thread(link.pulse, [lease], [lease])
    assert (pulse.known, pulse.lost) == (True, [])
    assert not seeing_off.done()
    assert await link.report([succeeded(inbox.jobs[0])]) == [True]
    await link.close()
    await patience.wait_for(seeing_off, 20)
    assert (await engine.get(job_id)).state is State.DONE
    assert await engine.list_workers() == []
    await backend.stop()


async def test_workers_that_go_on_are_sent_to_another_server_and_get_nothing_more(
    engine, serve, worker_info
):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    idle = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    await engine.submit([JobSpec(payload=b"x")])
    _, inbox = await stream_worker(backend, worker_info)
    await inbox.until(lambda inbox: inbox.jobs)
    await stream_worker(idle, worker_info, "w2")
    await engine.until(lambda: len(engine.links) == 2 and engine.links[1].granted)
    seeing_off = await stopping(engine, face)
    await patience.wait_for(seeing_off, 20)
    async with patience.timeout(20):
        while face.connected("w1") or face.connected("w2"):
            await asyncio.sleep(0.01)
    await engine.submit([JobSpec(payload=b"y")])
    assert len(inbox.jobs) == 1
    await backend.stop()
    await idle.stop()


@pytest.mark.parametrize("goes_on", [False, True], ids=["it stops", "it goes on"])
async def test_a_worker_without_a_stream_reports_until_it_asks_for_more(engine, serve, goes_on):
    face, port = await serve(engine)
    (job_id,) = [result.unwrap() for result in await engine.submit([JobSpec(payload=b"x")])]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        info = t.WorkerInfo(id="simple", incarnation=77, concurrency=3, queues=["default"])
        await stub.Register(w.RegisterRequest(worker=info))
        (job,) = (await stub.Fetch(w.FetchRequest(**ME, limit=1, wait_seconds=5))).assignments
        seeing_off = await stopping(engine, face)
        if goes_on:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Fetch(w.FetchRequest(**ME, limit=1))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await patience.wait_for(seeing_off, 20)
        report = w.Report(kind=w.REPORT_KIND_SUCCEEDED, seq=job.seq, lease=job.lease)
        answer = await stub.Report(w.ReportRequest(**ME, reports=[report]))
        assert list(answer.accepted) == [True]
        await stub.Deregister(w.DeregisterRequest(**ME))
        await patience.wait_for(seeing_off, 20)
    assert (await engine.get(job_id)).state is State.DONE


async def test_a_worker_that_does_not_finish_is_waited_for_so_long_at_most(
    engine, serve, worker_info, caplog
):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    await engine.submit([JobSpec(payload=b"x")])
    link, inbox = await stream_worker(backend, worker_info)
    await inbox.until(lambda inbox: inbox.jobs)
    await link.drain()
    await patience.wait_for(await stopping(engine, face, within=0.1), 20)
    assert "1 workers still hold jobs" in caplog.text
    await backend.stop()
