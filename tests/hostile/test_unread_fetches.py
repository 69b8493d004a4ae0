"""Jobs that a worker fetches and does not read take bounded memory, and none of them is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.api.grpc.channel import MIB
from jobqueue.api.grpc.worker_servicer import FetchBuffer
from jobqueue.pb.jq.v1 import client_pb2, types_pb2, worker_pb2, worker_pb2_grpc
from tests import patience
from tests.hostile.frames import Frames
from tests.hostile.target import Target, headers, metadata
from tests.hostile.test_messages import SUBMIT_BATCH, settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FETCH = "/jq.v1.WorkerService/Fetch"
# One caller has room for 64 MiB of answers; what is read from the store takes some beside.
ROOM_MIB = 200
WORKERS = 150


async def submit(channel: grpc.aio.Channel, count: int, queue: str) -> None:
    """So many jobs of 1 MiB."""
    call: Any = channel.unary_unary(SUBMIT_BATCH)
    batch = client_pb2.SubmitBatchRequest(
        specs=[types_pb2.JobSpec(queue=queue, payload=b"x" * MIB)] * 2
    ).SerializeToString()
    for _ in range(count // 2):
        await call(batch, metadata=metadata("client"), timeout=patience.longest(60))


async def register(channel: grpc.aio.Channel, name: str, concurrency: int, queue: str) -> None:
    info = types_pb2.WorkerInfo(
        id=name, incarnation=7, hostname="h", pid=1, concurrency=concurrency, queues=[queue]
    )
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    await stub.Register(
        worker_pb2.RegisterRequest(worker=info),
        metadata=metadata("worker"),
        timeout=patience.longest(60),
    )


def fetching(name: str, limit: int, wait: float) -> worker_pb2.FetchRequest:
    return worker_pb2.FetchRequest(worker_id=name, incarnation=7, limit=limit, wait_seconds=wait)


async def operate(target: Target, verb: str, path: str, body: str | None = None) -> None:
    code, text = await asyncio.to_thread(target.ask, verb, path, headers("operator"), body)
    assert code < 300, text


async def test_fetches_that_are_not_read_are_bounded(durable: Target):
    """Before, each of the fetches that waited got its job, read or not: 860 MiB for 300."""
    await operate(durable, "POST", "/queues", '{"name": "unread"}')
    await operate(durable, "POST", "/queues/unread/pause")
    async with durable.channel() as channel:
        await submit(channel, WORKERS, "unread")
        for number in range(WORKERS):
            await register(channel, f"silent-{number}", 1, "unread")
        async with Frames(durable.grpc_target, "worker") as frames:
            with durable.watched() as seen:
                for number in range(WORKERS):
                    request = fetching(f"silent-{number}", 1, 30)
                    await frames.call(FETCH, request.SerializeToString())
                await operate(durable, "POST", "/queues/unread/resume")
                await settled(durable)
                assert not frames.closed
        assert seen.grown_mib < ROOM_MIB
        seen.check_healthy()
        # Once those answers are gone, a worker that reads gets what was held back.
        await register(channel, "awake", 10, "unread")
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        async with patience.timeout(60):
            answer = await stub.Fetch(fetching("awake", 2, 30), metadata=metadata("worker"))
        assert answer.assignments
    await operate(durable, "DELETE", "/queues/unread?force=true")


async def test_one_fetch_brings_a_bounded_answer_and_the_rest_comes_with_the_next(
    durable: Target,
):
    """Before, a claim was as large as a batch of the scheduler: 100 MiB in one answer."""
    count = 60
    await operate(durable, "POST", "/queues", '{"name": "much"}')
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(durable.grpc_target, options=options) as channel:
        await submit(channel, count, "much")
        await register(channel, "greedy", 100_000, "much")
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        seen: set[int] = set()
        with durable.watched() as watched:
            async with patience.timeout(120):
                while len(seen) < count:
                    answer = await stub.Fetch(
                        fetching("greedy", 100_000, 10), metadata=metadata("worker")
                    )
                    assert answer.ByteSize() < 40 * MIB
                    # Each attempt is the first: nothing was claimed and given back.
                    assert {job.attempt for job in answer.assignments} == {1}
                    seen |= {job.seq for job in answer.assignments}
        assert watched.grown_mib < ROOM_MIB
        watched.check_healthy()


async def test_small_jobs_come_as_many_as_are_asked_for(durable: Target):
    """What is reserved for jobs that might be large does not make many small ones few."""
    await operate(durable, "POST", "/queues", '{"name": "small"}')
    async with durable.channel() as channel:
        call: Any = channel.unary_unary(SUBMIT_BATCH)
        batch = client_pb2.SubmitBatchRequest(
            specs=[types_pb2.JobSpec(queue="small", payload=b"1")] * 90
        )
        await call(
            batch.SerializeToString(), metadata=metadata("client"), timeout=patience.longest(30)
        )
        await register(channel, "quick", 90, "small")
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        answer = await stub.Fetch(
            fetching("quick", 90, 10), metadata=metadata("worker"), timeout=patience.longest(30)
        )
        assert len(answer.assignments) > 60


async def test_a_fetch_that_lacks_room_waits_for_it():
    """And does not ask again and again meanwhile, however large jobs may be."""
    for job_room in (1, 5, 10):
        bytes = MessageBytes(10)
        room = Room(bytes, "worker")
        held = 0
        while bytes.take("worker", 1):
            held += 1
        buffer = FetchBuffer(job_room)
        lacking: list[None] = []
        buffer.lacks_room = lambda lacking=lacking: lacking.append(None)  # type: ignore[misc]
        buffer.begin(room)
        assert buffer.reserve(3) == 0
        assert lacking
        waiting = asyncio.create_task(room.until_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        bytes.change("worker", held, 0)
        async with patience.timeout(10):
            await waiting
        assert buffer.reserve(3) == 3
        buffer.release(3)
        assert not room.taken
