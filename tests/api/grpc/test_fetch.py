"""The unary worker calls, as a simple client in another language would use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.core.ids import id_from_bytes
from jobqueue.core.job import JobSpec, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.pb.jq.v1 import types_pb2 as t
from jobqueue.pb.jq.v1 import worker_pb2 as w
from jobqueue.pb.jq.v1 import worker_pb2_grpc
from tests import patience

ME: dict[str, Any] = {"worker_id": "simple", "incarnation": 77}


@pytest_asyncio.fixture
async def stub(port) -> AsyncIterator[worker_pb2_grpc.WorkerServiceStub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        info = t.WorkerInfo(id="simple", incarnation=77, concurrency=3, queues=["default"])
        answer = await stub.Register(w.RegisterRequest(worker=info))
        assert answer.server_version
        yield stub


async def submit(engine, count):
    results = await engine.submit([JobSpec(payload=b"%d" % n) for n in range(count)])
    return [result.unwrap() for result in results]


def fetch(stub, limit=3, wait=0.0):
    return stub.Fetch(
        w.FetchRequest(**ME, limit=limit, wait_seconds=wait), timeout=patience.longest(10)
    )


def report(stub, kind, *jobs):
    reports = [w.Report(kind=kind, seq=job.seq, lease=job.lease) for job in jobs]
    return stub.Report(w.ReportRequest(**ME, reports=reports))


async def test_a_worker_may_say_which_types_it_knows(engine, stub):
    """And say it anew: it is taken as it registered last."""
    await engine.submit([JobSpec(payload=b"1", type=type) for type in ("a", "b", "c")])
    for types in (["b"], ["c", "a"]):
        info = t.WorkerInfo(
            id="simple", incarnation=77, concurrency=3, queues=["default"], types=types
        )
        await stub.Register(w.RegisterRequest(worker=info))
        jobs = (await fetch(stub, wait=5.0)).assignments
        assert {job.type for job in jobs} == set(types)
        await report(stub, w.REPORT_KIND_SUCCEEDED, *jobs)


async def test_from_fetch_to_done(engine, stub):
    ids = await submit(engine, 2)
    jobs = (await fetch(stub, wait=5.0)).assignments
    assert [id_from_bytes(job.job_id) for job in jobs] == ids
    assert list((await report(stub, w.REPORT_KIND_STARTED, *jobs)).accepted) == [True, True]
    beat = w.HeartbeatRequest(**ME, leases=[job.lease for job in jobs])
    assert (await stub.Heartbeat(beat)).pulse.known
    assert list((await report(stub, w.REPORT_KIND_SUCCEEDED, *jobs)).accepted) == [True, True]
    assert {(await engine.get(job_id)).state for job_id in ids} == {State.DONE}
    await stub.Deregister(w.DeregisterRequest(**ME))
    await stub.Deregister(w.DeregisterRequest(**ME))
    assert await engine.list_workers() == []
    assert not (await stub.Heartbeat(w.HeartbeatRequest(**ME))).pulse.known


async def test_a_fetch_waits_for_work(engine, stub):
    waiting = asyncio.ensure_future(fetch(stub, wait=10.0))
    await engine.until(lambda: engine.links[-1].granted == 3)
    await submit(engine, 1)
    assert len((await waiting).assignments) == 1


async def test_a_fetch_ends_in_time(stub):
    started = time.monotonic()
    limit = patience.Limit(2.0)
    answer = await fetch(stub, wait=0.1)
    assert time.monotonic() - started > 0.09
    assert not limit.over
    assert list(answer.assignments) == []
    assert answer.status == t.WORKER_STATUS_ONLINE


async def test_between_fetches_nothing_is_assigned(engine, stub):
    await fetch(stub, wait=0.05)
    ids = await submit(engine, 5)
    assert {(await engine.get(job_id)).state for job_id in ids} == {State.PENDING}
    assert len((await fetch(stub, limit=2, wait=5.0)).assignments) == 2
    states = [(await engine.get(job_id)).state for job_id in ids]
    assert states.count(State.ASSIGNED) == 2


async def test_a_caller_that_goes_away_leaves_no_job_behind(engine, stub):
    waiting = asyncio.ensure_future(fetch(stub, wait=10.0))
    await engine.until(lambda: engine.links[-1].granted == 3)
    waiting.cancel()
    await engine.until(lambda: engine.links[-1].drains == 1)
    ids = await submit(engine, 1)
    assert (await engine.get(ids[0])).state is State.PENDING
    assert len((await fetch(stub, wait=5.0)).assignments) == 1


async def test_a_drained_worker_fetches_nothing(engine, stub):
    await submit(engine, 1)
    await engine.drain_worker("simple")
    answer = await fetch(stub, wait=5.0)
    assert (list(answer.assignments), answer.status) == ([], t.WORKER_STATUS_DRAINING)
    workers = await engine.list_workers()
    assert [worker.status for worker in workers] == [WorkerStatus.DRAINING]
    await engine.undrain_worker("simple")
    answer = await fetch(stub, wait=5.0)
    assert (len(answer.assignments), answer.status) == (1, t.WORKER_STATUS_ONLINE)


async def test_a_drain_through_another_process_is_noticed_by_heartbeat(engine, stub):
    await engine.store.workers.set_status("simple", WorkerStatus.DRAINING)
    pulse = (await stub.Heartbeat(w.HeartbeatRequest(**ME))).pulse
    assert pulse.status == t.WORKER_STATUS_DRAINING
    await submit(engine, 1)
    assert list((await fetch(stub)).assignments) == []


async def test_a_worker_on_a_stream_cannot_fetch(stub):
    stream = stub.Connect()
    info = t.WorkerInfo(id="simple", incarnation=77, concurrency=3, queues=["default"])
    await stream.write(w.ConnectRequest(hello=w.Hello(worker=info)))
    await stream.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await fetch(stub)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    stream.cancel()


async def test_heartbeats_on_the_stream(engine, stub):
    await submit(engine, 1)
    stream = stub.Connect()
    info = t.WorkerInfo(id="simple", incarnation=77, concurrency=3, queues=["default"])
    await stream.write(w.ConnectRequest(hello=w.Hello(worker=info)))
    await stream.read()
    await stream.write(w.ConnectRequest(slots=1))
    (job,) = (await stream.read()).assignments
    await stream.write(w.ConnectRequest(beat=w.Beat(leases=[job.lease, 9])))
    pulse = (await stream.read()).pulse
    assert (pulse.known, list(pulse.lost)) == (True, [9])
    stream.cancel()


async def test_a_simple_client_tells_progress_with_its_heartbeats(engine, stub):
    (job_id,) = await submit(engine, 1)
    (job,) = (await fetch(stub, wait=5.0)).assignments
    await report(stub, w.REPORT_KIND_STARTED, job)
    news = w.LeaseProgress(lease=job.lease, value=0.5, text="line 1\nline 2 " + "x" * 300)
    of_others = w.LeaseProgress(lease=4711, value=0.5)
    beat = w.HeartbeatRequest(**ME, leases=[job.lease], progress=[news, of_others], incomplete=True)
    assert (await stub.Heartbeat(beat)).pulse.known
    progress = (await engine.get(job_id)).progress
    assert progress.value == 0.5
    assert progress.text.startswith("line 1 line 2 xxx")
    assert len(progress.text) == 200
    text_alone = w.LeaseProgress(lease=job.lease, text="no number")
    await stub.Heartbeat(w.HeartbeatRequest(**ME, leases=[job.lease], progress=[text_alone]))
    progress = (await engine.get(job_id)).progress
    assert (progress.value, progress.text) == (None, "no number")
    await report(stub, w.REPORT_KIND_SUCCEEDED, job)
    assert (await engine.get(job_id)).progress is None


async def test_progress_on_the_stream(engine, stub):
    (job_id,) = await submit(engine, 1)
    stream = stub.Connect()
    info = t.WorkerInfo(id="simple", incarnation=77, concurrency=3, queues=["default"])
    await stream.write(w.ConnectRequest(hello=w.Hello(worker=info)))
    await stream.read()
    await stream.write(w.ConnectRequest(slots=1))
    (job,) = (await stream.read()).assignments
    started = w.Report(kind=w.REPORT_KIND_STARTED, seq=job.seq, lease=job.lease)
    await stream.write(w.ConnectRequest(reports=[w.ReportBatch(number=1, reports=[started])]))
    await stream.read()
    news = w.LeaseProgress(lease=job.lease, value=1)
    beat = w.Beat(leases=[job.lease], progress=[news])
    await stream.write(w.ConnectRequest(beat=beat))
    assert (await stream.read()).pulse.known
    assert (await engine.get(job_id)).progress.value == 1
    stream.cancel()


async def test_a_lease_that_a_fetching_worker_never_lists_is_failed_over(stub, engine):
    """Fetches between the beats must not make the server forget what the last beat lacked."""
    (job_id,) = await submit(engine, 1)
    (a,) = (await fetch(stub, limit=1, wait=5.0)).assignments
    kind = w.REPORT_KIND_STARTED
    report = w.Report(seq=a.seq, lease=a.lease, kind=kind)
    assert (await stub.Report(w.ReportRequest(**ME, reports=[report]))).accepted == [True]
    for _ in range(3):
        await fetch(stub, limit=1)
        await stub.Heartbeat(w.HeartbeatRequest(**ME))
    async with patience.timeout(10):
        while (await engine.get(job_id)).state is not State.FAILED:
            await asyncio.sleep(0.01)
