"""The coalescing submitter: batching, breaks, restarts, sizes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.access.budgets import Budget, Budgets
from jobqueue.access.rules import BudgetKind
from jobqueue.api.grpc import client_servicer
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.remote.submitter import MAX_IN_FLIGHT
from jobqueue.core.errors import (
    InvalidArgument,
    JobQueueError,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from jobqueue.core.job import JobQuery, JobSpec, SubmitStatus
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc, types_pb2
from tests import patience

# With a stream, and at a server that has no place for one.
both_ways = pytest.mark.parametrize("port", ["stream", "calls"], indirect=True)


@pytest_asyncio.fixture
async def port(engine, serve, request) -> int:
    places = 0 if getattr(request, "param", "") == "calls" else 32
    budgets = Budgets({BudgetKind.SUBMIT_STREAM: Budget(places, places)})
    return (await serve(engine, budgets=budgets))[1]


def one(key=None, payload=b"x"):
    return [JobSpec(payload=payload, key=key)]


async def stored(engine) -> int:
    return len((await engine.list_jobs(JobQuery(limit=1000))).jobs)


async def crowd(engine, backend, count):
    """Calls against an engine that answers none: some in flight, each alone, the rest waiting."""
    await backend.submit(one())
    engine.batches.clear()
    engine.submit_gate.clear()
    tasks = []
    for sent in range(1, count + 1):
        tasks.append(asyncio.create_task(backend.submit(one())))
        await asyncio.sleep(0)
        expected = min(sent, MAX_IN_FLIGHT)
        await engine.until(lambda expected=expected: len(engine.batches) == expected)
    return tasks


async def settled(tasks):
    """Each task's result or error."""
    async with patience.timeout(10):
        return await asyncio.gather(*tasks, return_exceptions=True)


@both_ways
async def test_concurrent_calls_share_messages(engine, remote):
    await remote.submit(one())  # the stream is open
    engine.batches.clear()
    answers = await asyncio.gather(*[remote.submit(one()) for _ in range(500)])
    assert len({answer[0].unwrap() for answer in answers}) == 500
    assert sum(engine.batches) == 500
    assert len(engine.batches) <= 5


async def test_a_lone_call_is_not_kept_waiting(remote):
    await remote.submit(one())
    limit = patience.Limit(20 * 0.05)
    for _ in range(20):
        await remote.submit(one())
    assert not limit.over


@both_ways
async def test_only_so_many_batches_are_in_flight(engine, remote):
    tasks = await crowd(engine, remote, 10)
    engine.submit_gate.set()
    await asyncio.gather(*tasks)
    assert engine.batches == [1] * MAX_IN_FLIGHT + [10 - MAX_IN_FLIGHT]


async def test_batches_are_bounded_by_bytes(engine, remote):
    answers = await remote.submit([JobSpec(payload=b"x" * 300_000) for _ in range(10)])
    assert all(answer.status is SubmitStatus.ACCEPTED for answer in answers)
    assert max(engine.batches) <= 3


async def test_a_refused_item_harms_no_other_caller(remote):
    good, bad = await asyncio.gather(
        remote.submit(one()), remote.submit([JobSpec(payload=b"x", queue="nowhere")])
    )
    assert good[0].status is SubmitStatus.ACCEPTED
    assert bad[0].status is SubmitStatus.REFUSED


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 6 * 1024 * 1024])
@both_ways
async def test_an_oversized_payload_is_refused_alone(remote, size):
    large = JobSpec(payload=b"x" * size)
    for specs in ([large], [JobSpec(payload=b"x"), large, JobSpec(payload=b"y")]):
        other, results = await asyncio.gather(remote.submit(one()), remote.submit(specs))
        assert other[0].status is SubmitStatus.ACCEPTED
        for spec, result in zip(specs, results, strict=True):
            if spec is large:
                assert isinstance(result.error, InvalidArgument)
                assert result.error.field == "payload"
            else:
                assert result.status is SubmitStatus.ACCEPTED


async def test_a_large_payload_within_the_limit_is_taken(remote):
    payload = b"x" * (1024 * 1024)
    (result,) = await remote.submit(one(payload=payload))
    assert (await remote.get(result.unwrap())).payload == payload


async def test_nobody_there_is_said_at_once():
    backend = GrpcBackend("127.0.0.1:1", timeout=patience.stretched(5))
    limit = patience.Limit(4)
    for specs in (one(), one() * 3, one(payload=b"x" * 1024 * 1024), one(key="k")):
        with pytest.raises(Unavailable):
            await backend.submit(specs)
    assert not limit.over
    await backend.stop()


@pytest.mark.req("jq:NFR-005")
@both_ways
async def test_a_lost_answer_without_a_key_is_unknown(engine, proxy, through_proxy):
    await through_proxy.submit(one())
    engine.submit_gate.clear()
    task = asyncio.create_task(through_proxy.submit(one()))
    await engine.until(lambda: len(engine.batches) == 2)
    proxy.cut()
    with pytest.raises(OutcomeUnknown):
        await task
    engine.submit_gate.set()
    (again,) = await through_proxy.submit(one())  # the stream is open again
    assert again.status is SubmitStatus.ACCEPTED


@both_ways
async def test_a_lost_answer_with_keys_is_asked_for_again(engine, proxy, through_proxy):
    await through_proxy.submit(one())
    engine.submit_gate.clear()
    task = asyncio.create_task(
        through_proxy.submit([JobSpec(payload=b"x", key="a"), JobSpec(payload=b"x", key="b")])
    )
    await engine.until(lambda: len(engine.batches) == 2)
    proxy.cut()
    engine.submit_gate.set()
    results = await task
    assert [result.status for result in results] == [SubmitStatus.DUPLICATE] * 2
    assert await stored(engine) == 3


@both_ways
async def test_what_was_not_sent_survives_a_break(engine, proxy, through_proxy):
    tasks = await crowd(engine, through_proxy, MAX_IN_FLIGHT + 5)
    proxy.cut()
    engine.submit_gate.set()
    results = await settled(tasks)
    unknown = [result for result in results if isinstance(result, OutcomeUnknown)]
    assert len(unknown) == MAX_IN_FLIGHT
    assert len(results) - len(unknown) == 5
    assert await stored(engine) == 1 + MAX_IN_FLIGHT + 5


async def test_a_server_that_says_goodbye_leaves_nothing_unknown(engine, serve):
    face, port = await serve(engine)
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(10))
    await backend.submit(one())
    stop = False
    outcomes: list[str] = []

    async def producer():
        while not stop:
            (result,) = await backend.submit(one())
            outcomes.append(result.unwrap())

    producers = [asyncio.create_task(producer()) for _ in range(20)]
    for _ in range(3):
        await asyncio.sleep(0.1)
        await face.stop(2.0)
        face, _ = await serve(engine, port)
    await asyncio.sleep(0.1)
    stop = True
    results = await settled(producers)
    assert [result for result in results if result is not None] == []
    assert len(set(outcomes)) == len(outcomes)
    engine_count = sum(engine.batches)
    assert engine_count == len(outcomes) + 1  # nothing twice, nothing lost
    await backend.stop()


async def test_a_client_that_does_not_say_goodbye_is_cut_off(engine, serve, monkeypatch):
    monkeypatch.setattr(client_servicer, "GOODBYE", 0.1)
    face, port = await serve(engine)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: Any = client_pb2_grpc.ClientServiceStub(channel).SubmitStream()
        await stream.wait_for_connection()
        engine.submit_gate.clear()
        specs = [types_pb2.JobSpec(payload=b"x")]
        await stream.write(client_pb2.SubmitStreamRequest(number=1, specs=specs))
        await engine.until(lambda: engine.batches)
        stopping = asyncio.create_task(face.stop(5.0))
        assert (await stream.read()).closing
        await asyncio.sleep(0.2)
        engine.submit_gate.set()
        assert (await stream.read()).number == 1  # what was begun is answered
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata() or ())["jq-code"] == "UNAVAILABLE"
        await stopping


async def test_a_server_that_does_not_answer_is_given_up(engine, proxy):
    port = proxy._server.sockets[0].getsockname()[1]
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=0.5)
    await backend.submit(one())
    engine.submit_gate.clear()
    tasks = [asyncio.create_task(backend.submit(one(key=key))) for key in (None, "k")]
    results = await settled(tasks)
    assert [type(result) for result in results] == [OutcomeUnknown, OutcomeUnknown]
    engine.submit_gate.set()
    await backend.stop()


async def test_an_unreachable_server_is_waited_for_only_so_long(engine, proxy):
    port = proxy._server.sockets[0].getsockname()[1]
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=0.5)
    await backend.submit(one())
    proxy.refuse = True
    proxy.cut()
    async with patience.timeout(5):
        while backend._opened()[1]._stream is not None:  # the break was noticed
            await asyncio.sleep(0.01)
    started = time.monotonic()
    limit = patience.Limit(5)
    with pytest.raises(Unavailable):
        await backend.submit(one())
    assert time.monotonic() - started > 0.3
    assert not limit.over
    proxy.refuse = False
    async with patience.timeout(10):
        while True:
            try:
                (result,) = await backend.submit(one())
                break
            except Unavailable:  # the channel pauses between its attempts
                continue
    assert result.status is SubmitStatus.ACCEPTED
    await backend.stop()


@both_ways
async def test_a_caller_that_goes_away_harms_nobody(engine, remote):
    await remote.submit(one())
    engine.submit_gate.clear()
    tasks = [asyncio.create_task(remote.submit(one())) for _ in range(10)]
    await engine.until(lambda: len(engine.batches) > 1)
    for task in tasks[::2]:
        task.cancel()
    engine.submit_gate.set()
    results = await settled(tasks)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert all(isinstance(result, list) for result in results[1::2])


@both_ways
async def test_stop_tells_what_did_not_happen(engine, port):
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    tasks = await crowd(engine, backend, MAX_IN_FLIGHT + 1)
    await backend.stop()
    await backend.stop()
    results = await settled(tasks)
    assert [type(r) for r in results] == [OutcomeUnknown] * MAX_IN_FLIGHT + [Unavailable]


LARGE = b"x" * 1024 * 1024


@pytest.mark.parametrize("key", [None, "k"])
async def test_stop_does_not_say_that_a_call_under_way_did_not_happen(engine, port, key):
    backend = GrpcBackend(f"127.0.0.1:{port}")
    engine.submit_gate.clear()
    task = asyncio.create_task(backend.submit(one(key=key, payload=LARGE)))
    await engine.until(lambda: engine.batches == [1])
    await backend.stop()
    with pytest.raises(OutcomeUnknown):
        await task
    engine.submit_gate.set()


async def test_a_lost_answer_stays_lost_when_the_next_try_is_refused(engine, remote, monkeypatch):
    """The first of two tries broke: that the second did not happen proves nothing."""
    answers: list[JobQueueError] = [OutcomeUnknown("broke"), Unavailable("gone")]

    async def call(*_: Any, **__: Any) -> Any:
        raise answers.pop(0)

    await remote.submit(one())
    submitter = remote._opened()[1]
    monkeypatch.setattr(submitter._servers, "call", call)
    with pytest.raises(OutcomeUnknown):
        await remote.submit(one(key="k", payload=LARGE))
    assert answers == []


@pytest.mark.parametrize("error", [PermissionDenied("no"), Unavailable("the server is going")])
async def test_a_lost_answer_stays_lost_when_the_next_stream_is_refused(engine, remote, error):
    await remote.submit(one())
    engine.submit_gate.clear()
    task = asyncio.create_task(remote.submit(one(key="k")))
    await engine.until(lambda: len(engine.batches) == 2)
    submitter = remote._opened()[1]
    submitter._broken(exact=False)  # the stream that it was sent on
    (chunk,) = submitter._waiting
    submitter._waiting.clear()
    submitter._in_flight[99] = [chunk]  # the next one
    submitter._broken(exact=True)
    chunk.fail(error)
    submitter._waiting.clear()
    with pytest.raises(OutcomeUnknown):
        await task
    engine.submit_gate.set()


async def test_a_batch_that_fails_as_a_whole_is_answered(engine, remote):
    engine.submit_error = Unavailable("disk full")
    with pytest.raises(Unavailable, match="disk full"):
        await remote.submit(one())
    engine.submit_error = RuntimeError("secret")
    with pytest.raises(JobQueueError) as caught:
        await remote.submit(one())
    assert "secret" not in str(caught.value)
    engine.submit_error = None
    assert (await remote.submit(one()))[0].unwrap()


async def test_the_wire_protocol_by_hand(remote):
    """As another language's client would speak it."""
    stream = remote._servers.pick().client.SubmitStream()
    for number in (7, 3):
        specs = [types_pb2.JobSpec(payload=b"x"), types_pb2.JobSpec()]
        await stream.write(client_pb2.SubmitStreamRequest(number=number, specs=specs))
    answers: dict[int, client_pb2.SubmitStreamResponse] = {}
    while len(answers) < 2:
        answer = await stream.read()
        answers[answer.number] = answer
    for number in (7, 3):
        good, bad = answers[number].results
        assert good.job_id
        assert (bad.job_id, bad.error.field) == ("", "payload")
    await stream.done_writing()
    assert await stream.code() is not None


async def test_answers_that_nobody_reads_stop_the_reading():
    """Else a client that only sends has the server keep all of its answers."""

    class Observer:
        """Sends as long as somebody reads, and takes no answer."""

        read_so_far = 0

        async def open(self) -> None:
            pass

        async def read(self) -> client_pb2.SubmitStreamRequest:
            self.read_so_far += 1
            await asyncio.sleep(0)
            return client_pb2.SubmitStreamRequest(number=self.read_so_far)

        def keep(self) -> int:
            return 0

        def forget(self, kept: int) -> None:
            pass

        async def room_for(self, results: int) -> int:
            return 0

        def pack(self, answer: object, taken: int) -> object:
            return answer

        async def send(self, answer: object) -> None:
            await asyncio.Event().wait()

    async def submit(specs: object) -> list[Any]:
        return []

    stream: Any = Observer()
    served = asyncio.create_task(client_servicer.submit_stream(submit, stream, Calls()))
    for _ in range(200):
        await asyncio.sleep(0)
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
    assert stream.read_so_far == client_servicer.MAX_IN_FLIGHT
