"""What waits for a worker is put into few messages, in an order that keeps its promises."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.api.grpc.outgoing import MAX_UNSENT, Outgoing
from jobqueue.core.job import Assignment, JobSpec, WorkerStatus
from jobqueue.pb.jq.v1 import worker_pb2 as pb

ID = "0b4ee0a2-0000-4000-8000-000000000000"


def job(seq: int, size: int = 1) -> Assignment:
    spec = JobSpec(payload=b"x" * size, queue="q", type="t", max_retries=3)
    return Assignment(seq, ID, spec, 1, seq, "w", 0, 0.0)


def seqs(message):
    return [given.seq for given in message.assignments]


async def test_everything_waiting_travels_together():
    outgoing = Outgoing()
    outgoing.welcome(pb.Welcome())
    outgoing.assigned([job(1), job(2)])
    outgoing.ack(pb.ReportAck(number=1))
    outgoing.assigned([job(3)])
    outgoing.cancel([7])
    outgoing.set_status(WorkerStatus.DRAINING)
    message = await outgoing.next()
    assert message is not None
    assert seqs(message) == [1, 2, 3]
    assert ([ack.number for ack in message.acks], list(message.cancelled)) == ([1], [7])
    assert message.HasField("welcome")
    outgoing.finish()
    assert await outgoing.next() is None


async def test_nothing_overtakes_the_answer_to_a_drain():
    outgoing = Outgoing()
    outgoing.assigned([job(1)])
    outgoing.drained(5)
    outgoing.assigned([job(2)])
    outgoing.ack(pb.ReportAck(number=9))
    first, second = await outgoing.next(), await outgoing.next()
    assert first is not None
    assert second is not None
    assert (seqs(first), first.drained, len(first.acks)) == ([1], 5, 0)
    assert (seqs(second), second.drained, len(second.acks)) == ([2], 0, 1)


async def test_large_jobs_are_split_and_what_follows_waits_for_the_last():
    outgoing = Outgoing()
    outgoing.ack(pb.ReportAck(number=1))
    outgoing.assigned([job(n, 700_000) for n in (1, 2, 3)])
    outgoing.cancel([3])
    outgoing.drained(4)
    messages = [await outgoing.next() for _ in range(3)]
    assert [seqs(message) for message in messages] == [[1], [2], [3]]
    assert [len(message.acks) for message in messages if message] == [1, 0, 0]
    assert [list(message.cancelled) for message in messages if message] == [[], [], [3]]
    assert [message.drained for message in messages if message] == [0, 0, 4]


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_what_was_not_sent_is_known(taken):
    outgoing = Outgoing()
    outgoing.assigned([job(n, 700_000) for n in (1, 2)])
    outgoing.drained(1)
    outgoing.assigned([job(3)])
    for _ in range(taken):
        await outgoing.next()
    # The message taken last may not have got out; the ones before did.
    expected = [1, 2, 3] if taken == 0 else [taken, *range(taken + 1, 4)]
    assert [given.seq for given in outgoing.undelivered()] == expected
    assert outgoing.undelivered() == []


async def test_slots_are_counted():
    outgoing = Outgoing()
    outgoing.free = 3
    outgoing.assigned([job(1), job(2)])
    assert outgoing.free == 1


async def test_a_cancel_that_is_asked_for_again_and_again_travels_once():
    outgoing = Outgoing()
    for _ in range(3):
        outgoing.cancel([7, 9])
    message = await outgoing.next()
    assert message is not None
    assert list(message.cancelled) == [7, 9]


async def test_the_place_of_an_answer_is_free_when_the_answer_is_sent():
    outgoing = Outgoing()
    for number in range(MAX_UNSENT):
        await outgoing.take_places()
        outgoing.ack(pb.ReportAck(number=number))
    waiting = asyncio.create_task(outgoing.take_places(2))
    message = await outgoing.next()
    assert message is not None
    assert len(message.acks) == MAX_UNSENT
    assert not waiting.done()  # it is on its way
    outgoing.finish()
    assert await outgoing.next() is None
    await waiting
