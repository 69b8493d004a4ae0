"""One caller's heartbeats neither hold up those of others nor fill the memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobqueue.access.budgets import MessageBytes
from jobqueue.access.callers import EVERY_ROLE, Caller, enter_call
from jobqueue.api.grpc.calls import Calls, end
from jobqueue.api.grpc.channel import MIB
from jobqueue.api.grpc.messages import Duplex
from jobqueue.api.grpc.outgoing import Outgoing
from jobqueue.api.grpc.registrations import Heartbeats, Registration
from jobqueue.api.grpc.work_stream import WorkStream
from jobqueue.core.job import Pulse, WorkerInfo
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2
from tests import patience
from tests.hostile.frames import Frames, message
from tests.hostile.target import Target
from tests.hostile.test_messages import send_some, settled
from tests.hostile.test_streams import CONNECT

LEASES = range(2**62, 2**62 + 100_000)  # as many as one message may have


class SlowStore:
    """Takes no heartbeat before it is let go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = threading.Event()

    def tell(self, *told: Any, **more: Any) -> Pulse:
        self.begun += 1
        assert self.go_on.wait(patience.longest(60))
        return Pulse(True)


@pytest.fixture
def store() -> Iterator[SlowStore]:
    store = SlowStore()
    yield store
    store.go_on.set()


def at_once(*told: Any, **more: Any) -> Pulse:
    return Pulse(True)


async def beat(heartbeats: Heartbeats, caller: str, tell: Any) -> Pulse:
    enter_call(Caller(caller, EVERY_ROLE))
    return await heartbeats.pulse(worker_pb2.Beat(), tell)


async def test_a_heartbeat_does_not_wait_for_those_of_another_caller(store: SlowStore):
    """Before, it waited until everything was told that others had sent before."""
    beats = Heartbeats(Calls())
    hungry = [asyncio.create_task(beat(beats, "hungry", store.tell)) for _ in range(40)]
    async with patience.timeout(30):
        while not store.begun:
            await asyncio.sleep(0.01)
        for _ in range(3):
            assert (await asyncio.create_task(beat(beats, "healthy", at_once))).known
        assert not any(task.done() for task in hungry)
        store.go_on.set()
        assert all(pulse.known for pulse in await asyncio.gather(*hungry))
    assert store.begun == 40


async def test_a_heartbeat_that_is_given_up_counts_until_its_thread_has_ended(store: SlowStore):
    """Who begins heartbeats and gives them up has no more threads than others."""
    calls = Calls()
    beats = Heartbeats(calls)
    async with patience.timeout(30):
        for _ in range(10):
            given_up = [asyncio.create_task(beat(beats, "hungry", store.tell)) for _ in range(4)]
            while not store.begun:
                await asyncio.sleep(0.01)
            await end(*given_up)
        assert (await asyncio.create_task(beat(beats, "healthy", at_once))).known
        assert store.begun <= 4
        store.go_on.set()
        await calls.settle()
        assert (await asyncio.create_task(beat(beats, "hungry", at_once))).known


def lost(count: int) -> worker_pb2.Pulse:
    return worker_pb2.Pulse(known=True, lost=LEASES[:count])


async def test_only_the_latest_answer_to_heartbeats_waits_and_its_bytes_count():
    """Before, each drain kept one more, and none of them counted."""
    outgoing = Outgoing()
    counted: list[int] = []
    outgoing.counted_by(counted.append)
    for number in range(1, 5):
        outgoing.pulse(lost(10_000 * number))
        outgoing.drained(number)
    outgoing.pulse(lost(2_000))
    assert 30_000 < sum(counted) < 40_000  # two copies of one answer
    sent = []
    for _ in range(5):
        said = await outgoing.next()
        assert said is not None
        sent.append((said.drained, len(said.pulse.lost)))
    assert sent == [(1, 0), (2, 0), (3, 0), (4, 0), (0, 2_000)]
    outgoing.finish()
    assert await outgoing.next() is None
    assert sum(counted) == 0


class Line:
    """gRPC's side of a worker's stream that brings one heartbeat; keeps what is written."""

    def __init__(self) -> None:
        self._beat: list[bytes] = [
            worker_pb2.ConnectRequest(beat=worker_pb2.Beat(leases=LEASES)).SerializeToString()
        ]
        self.written: asyncio.Queue[worker_pb2.ConnectResponse] = asyncio.Queue()

    async def read(self) -> bytes:
        if self._beat:
            return self._beat.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, data: bytes) -> None:
        self.written.put_nowait(worker_pb2.ConnectResponse.FromString(data))


class Stranger:
    """A link to a backend that knows no lease."""

    def pulse(self, leases: list[int], *told: Any, **more: Any) -> Pulse:
        return Pulse(True, lost=list(leases))

    async def drain(self) -> None: ...


@pytest.mark.parametrize(("held", "told"), [(1, len(LEASES)), (64 * MIB, 200)])
async def test_a_caller_without_room_hears_of_few_leases_at_a_time(held: int, told: int):
    """Its heartbeats still count, and the next answer tells of the next leases."""
    line, answers, calls = Line(), MessageBytes(4 * MIB), Calls()
    answers.change("app", 0, held)  # of its other streams, which are not read
    stream: Any = Duplex(
        line,
        worker_pb2.ConnectRequest.FromString,
        worker_pb2.ConnectResponse.SerializeToString,
        MessageBytes(4 * MIB),
        answers,
        "app",
    )
    info = WorkerInfo(
        id="w", incarnation=7, hostname="h", pid=1, concurrency=1, queues=("default",)
    )
    link: Any = Stranger()
    worker = WorkStream(Registration(info, link), Outgoing(), calls, Heartbeats(calls))
    serving = asyncio.create_task(worker.serve(stream))
    async with patience.timeout(30):
        answer = await line.written.get()
    await end(serving)
    stream.close()
    assert (answer.pulse.known, len(answer.pulse.lost)) == (True, told)
    answers.change("app", held, 0)
    assert answers.has_room("app")


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_answers_to_heartbeats_that_are_not_read_are_bounded(target: Target):
    """Before, as many waited to be sent as the worker had drains."""
    worker = types_pb2.WorkerInfo(
        incarnation=7, hostname="h", pid=1, queues=["none"], concurrency=1
    )
    said = worker_pb2.ConnectRequest(beat=worker_pb2.Beat(leases=LEASES), drain=1)
    flood = message(said.SerializeToString()) * 30
    with target.watched() as seen:
        async with Frames(target.grpc_target, "worker") as frames:
            left = {}
            for number in range(4):
                worker.id = f"deaf {number}"
                hello = worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker))
                left[frames, frames.begin(CONNECT)] = message(hello.SerializeToString()) + flood
            async with patience.timeout(120):
                while any(left.values()):
                    if not await send_some(left):
                        await asyncio.sleep(0.02)
            await settled(target)
    assert seen.grown_mib < 115
    seen.check_healthy()
