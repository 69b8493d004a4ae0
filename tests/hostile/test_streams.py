"""A peer that sends and does not read must not make the server keep what it does not take."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from jobqueue.access.rules import MAX_REPORT_BATCHES
from jobqueue.api.grpc.channel import KIB, MIB
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2
from tests import patience
from tests.hostile.frames import Frames, message
from tests.hostile.known_callers import over_grpc, serving
from tests.hostile.target import Target, metadata
from tests.hostile.test_messages import QUIET, answered

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CONNECT = "/jq.v1.WorkerService/Connect"
ROOM_MIB = 40


def channel_to(target: Target) -> grpc.aio.Channel:
    """A channel whose own buffers stay small, so that what is not read stays at the server."""
    return grpc.aio.insecure_channel(target.grpc_target, options=[("grpc.http2.bdp_probe", 0)])


async def connected(channel: grpc.aio.Channel, worker_id: str, concurrency: int = 1) -> Any:
    """A worker's stream, from its welcome on."""
    begin: Any = channel.stream_stream(
        CONNECT, response_deserializer=worker_pb2.ConnectResponse.FromString
    )
    call = begin(metadata=metadata("worker"))
    worker = types_pb2.WorkerInfo(
        id=worker_id, incarnation=7, hostname="h", pid=1, queues=["none"], concurrency=concurrency
    )
    hello = worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker))
    await call.write(hello.SerializeToString())
    assert (await call.read()).HasField("welcome")
    return call


class Flood:
    """Sends one message again and again, for as long as the server takes them."""

    def __init__(self, call: Any, message: bytes, times: int) -> None:
        self.sent = 0
        self._left = times
        self._task = asyncio.create_task(self._send(call, message))

    async def _send(self, call: Any, message: bytes) -> None:
        while self._left:
            self._left -= 1
            await call.write(message)
            self.sent += 1

    async def until_it_stands_still(self, target: Target) -> None:
        """Wait until all is sent, or the server takes no more and answers others meanwhile."""
        before = -1
        while before != self.sent and not self._task.done():
            before = self.sent
            await asyncio.wait({self._task}, timeout=QUIET)
            await answered(target)

    async def end(self) -> int:
        """Begin nothing more, and wait for what is under way; returns how many were sent."""
        self._left = 0
        await patience.wait_for(self._task, 60)
        return self.sent


TIMES = 300
# So that what the system keeps between the two is little beside what is sent.
PADDING = worker_pb2.ReportBatch(number=1, reports=[worker_pb2.Report(result=bytes(100_000))])
INVALID = worker_pb2.ReportBatch(number=1, reports=[worker_pb2.Report()])
STARTED = worker_pb2.Report(kind=worker_pb2.REPORT_KIND_STARTED, seq=1, lease=1)
STALE = worker_pb2.ReportBatch(number=2**62, reports=[STARTED])


@pytest.mark.parametrize(
    ("batch", "count"), [(INVALID, MAX_REPORT_BATCHES - 1), (STALE, 40)], ids=["invalid", "stale"]
)
async def test_a_worker_that_does_not_take_its_answers_is_not_read_any_further(
    target: Target, batch: worker_pb2.ReportBatch, count: int
):
    batches = [PADDING, *[batch] * count]
    message = worker_pb2.ConnectRequest(reports=batches).SerializeToString()
    async with channel_to(target) as channel:
        call = await connected(channel, "deaf")
        with target.watched() as seen:
            flood = Flood(call, message, TIMES)
            await flood.until_it_stands_still(target)
        assert flood.sent < TIMES
        assert seen.grown_mib < ROOM_MIB
        seen.check_healthy()
        # When it reads, it gets every answer.
        answers = 0
        ending = asyncio.create_task(flood.end())
        async with patience.timeout(120):
            while not ending.done() or answers < ending.result() * len(batches):
                answers += len((await call.read()).acks)
        assert answers == ending.result() * len(batches)
        call.cancel()


async def test_the_drains_of_a_worker_that_does_not_read_are_not_kept(target: Target):
    drain = worker_pb2.ConnectRequest(reports=[PADDING], drain=5).SerializeToString()
    async with channel_to(target) as channel:
        call = await connected(channel, "drained")
        with target.watched() as seen:
            flood = Flood(call, drain, 5 * TIMES)
            await flood.until_it_stands_still(target)
        assert flood.sent < 5 * TIMES
        assert seen.grown_mib < ROOM_MIB
        seen.check_healthy()
        call.cancel()


async def test_a_worker_that_does_not_read_is_sent_no_more_jobs():
    """Before, all that its slots were good for was read from the store and kept for it."""
    jobs, size, room = 240, 500 * KIB, 64 * MIB
    worker = types_pb2.WorkerInfo(
        id="deaf", incarnation=7, hostname="h", pid=1, queues=["default"], concurrency=jobs
    )
    hello = worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker))
    slots = worker_pb2.ConnectRequest(slots=jobs)
    async with (
        serving(known=False, scheduler__batch_size="10") as server,
        over_grpc(server, "ops") as ops,
    ):
        payload = b"x" * size  # of all of them: the store has it once
        for _ in range(jobs):
            await server.backend.submit([JobSpec(payload=payload)])
        async with Frames(server.grpc_target, "worker") as frames:
            stream = frames.begin(CONNECT)
            for one in (hello, slots):
                await frames.send(stream, message(one.SerializeToString()))
            assigned, before = 0, -1
            async with patience.timeout(60):
                while assigned != before or assigned <= room / size / 2:
                    await asyncio.sleep(0.5)
                    before = assigned
                    assigned = (await ops.queue_stats("default")).depth[State.ASSIGNED]
            assert assigned < room / size + 20
            # When it reads, it gets the rest.
            frames.read()
            async with patience.timeout(60):
                while frames.received[stream] < jobs * size:
                    await frames.moved()
