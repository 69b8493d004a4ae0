"""Streams that wait keep nothing, leave the loop to others, and do not stop each other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc.aio
import pytest

from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.api.grpc.calls import Calls, end
from jobqueue.api.grpc.channel import MIB
from jobqueue.api.grpc.client_servicer import submit_stream
from jobqueue.api.grpc.messages import Duplex
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Job, JobSpec
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.core.store import Change
from jobqueue.core.waiting import LONG, answer_room
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.memory.reads import MemoryReads
from tests import patience
from tests.hostile.known_callers import serving


class Context:
    """gRPC's side of a stream: gives what it has, then nothing comes for ever."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.written = asyncio.Event()
        self.left = False  # the caller is gone

    async def send_initial_metadata(self, metadata: object) -> None: ...

    async def read(self) -> bytes:
        if self._messages:
            return self._messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, data: bytes) -> None:
        if self.left:
            raise grpc.aio.InternalError("ExecuteBatchError")
        self.written.set()


def duplex(
    context: Context, room: MessageBytes, parse: Callable[[bytes], Any] = bytes
) -> Duplex[Any, Any]:
    return Duplex(context, parse, lambda message: b"x" * message, room, room, "app")


class Batch:
    """A message of a submit stream that can be watched."""

    number = 1
    specs = ()


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end(task)


async def test_an_idle_submit_stream_keeps_nothing_of_its_last_batch():
    """Before, it was in memory until the next one came."""
    batches: list[weakref.ref[Batch]] = []

    def parse(_: bytes) -> Batch:
        batch = Batch()
        batches.append(weakref.ref(batch))
        return batch

    async def submit(specs: object) -> list[Any]:
        return []

    context = Context(b"batch")
    stream: Duplex[Any, Any] = Duplex(
        context, parse, lambda _: b"answer", MessageBytes(MIB), MessageBytes(MIB), "app"
    )
    async with running(submit_stream(submit, stream, Calls())), patience.timeout(10):
        await context.written.wait()
        while batches[0]() is not None:
            await asyncio.sleep(0.01)


async def test_large_messages_of_streams_are_parsed_in_turns():
    """Before, as many as were there were parsed one after the other."""
    rounds = [0]
    parsed: list[int] = []

    async def count() -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    def parse(data: bytes) -> bytes:
        parsed.append(rounds[0])
        return data

    room = MessageBytes(MIB)
    streams = [duplex(Context(b"x" * (LONG + 1)), room, parse) for _ in range(8)]
    async with running(count()), patience.timeout(10):
        await asyncio.gather(*(stream.read() for stream in streams))
    assert len(set(parsed)) == 8


async def test_a_stream_that_is_not_read_does_not_stop_the_others_of_its_caller():
    room = MessageBytes(MIB)
    stuck, other = duplex(Context(), room), duplex(Context(), room)
    stuck.count_unsent(20 * MIB)
    assert not stuck.has_room
    assert other.has_room  # nothing of it waits to be sent
    other.count_unsent(1)
    assert not other.has_room
    waiting = asyncio.create_task(other.until_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    other.count_unsent(-1)  # it was read
    async with patience.timeout(10):
        await waiting
    stuck.close()
    other.close()
    assert room.has_room("app")
    assert not room.wanted


async def test_a_caller_that_has_left_is_no_unexpected_error():
    context = Context()
    context.left = True
    stream = duplex(context, MessageBytes(MIB))
    with pytest.raises(Unavailable, match="the stream has ended"):
        await stream.write(10)
    stream.close()


async def test_a_long_poll_keeps_no_job_while_it_waits():
    async with serving(known=False) as server:
        (made,) = await server.backend.submit([JobSpec(payload=b"x")])
        waiting = asyncio.create_task(server.backend.wait(made.job_id, 60.0))
        for _ in range(100):  # in memory, it has looked and waits by then
            await asyncio.sleep(0)
        assert not waiting.done()
        jobs = [one for one in gc.get_objects() if isinstance(one, Job)]
        assert made.job_id not in [job.id for job in jobs]
        await end(waiting)


class CountingReads(MemoryReads):
    """Counts how often a job is read, and how often it is only looked at."""

    count = 0
    looks = 0

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        self.looks += 1
        return await super().moved_on(seen)

    async def get(self, job_id: str) -> Job | None:
        self.count += 1
        return await super().get(job_id)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads: CountingReads = CountingReads(self._contents)

    def on_change(self, heard: Callable[[Change], None]) -> None:
        self.heard = heard


@contextlib.asynccontextmanager
async def over(store: CountingStore) -> AsyncIterator[Engine]:
    engine = Engine(store)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_a_large_job_is_read_when_it_has_ended():
    """Before, each long poll read it each time that it looked whether it had ended."""
    store = CountingStore()
    async with over(store) as engine, patience.timeout(30):
        (made,) = await engine.submit([JobSpec(payload=b"x" * MIB)])
        waiting = asyncio.create_task(engine.wait(made.job_id, 60.0))
        while store.reads.count + store.reads.looks < 4:
            store.heard(Change.ENDED)  # of another job, elsewhere
            await asyncio.sleep(0.01)
        assert store.reads.count == 1
        await engine.cancel(made.job_id)
        assert (await waiting).state in TERMINAL


async def test_a_long_poll_reads_its_job_when_the_answer_has_room():
    """Before, all long polls of a job read it at once when it ended."""
    store = CountingStore()
    answers = MessageBytes(10, per_caller=2)
    rooms = [Room(answers, "app") for _ in range(6)]

    async def poll(engine: Engine, room: Room, job_id: str) -> Job:
        answer_room.set(room)
        return await engine.wait(job_id, 60.0)

    async with over(store) as engine, patience.timeout(30):
        (made,) = await engine.submit([JobSpec(payload=b"x")])
        polls = [asyncio.create_task(poll(engine, room, made.job_id)) for room in rooms]
        await asyncio.sleep(0.1)
        assert answers.has_room("app")  # those that wait hold none
        store.reads.count = -1  # the cancel reads it, too
        await engine.cancel(made.job_id)
        left = set(polls)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            assert store.reads.count <= 2
            store.reads.count -= len(done)
            for task in done:
                assert task.result().state in TERMINAL
                rooms[polls.index(task)].close()  # its answer is sent
    assert answers.has_room("app")
    assert not answers.wanted
