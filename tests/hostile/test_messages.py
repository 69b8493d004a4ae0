"""Messages take memory only as long as they have to, and only so much of it for one caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from jobqueue.access.budgets import Budgets, MessageBytes
from jobqueue.access.policy import Access
from jobqueue.access.rules import BudgetKind
from jobqueue.api.grpc import messages
from jobqueue.api.grpc.authorizer import GrpcAuthorizer
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.channel import MIB, MIN_RECEIVE_BYTES
from jobqueue.pb.jq.v1 import client_pb2, types_pb2
from tests import patience
from tests.cli import processes
from tests.hostile.frames import Frames, message
from tests.hostile.target import API_KEYS, Target, metadata

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SUBMIT = "/jq.v1.ClientService/Submit"
SUBMIT_BATCH = "/jq.v1.ClientService/SubmitBatch"
LIST_JOBS = "/jq.v1.ClientService/ListJobs"
GET_JOB = "/jq.v1.ClientService/GetJob"
WAIT_JOB = "/jq.v1.ClientService/WaitJob"
WATCH_JOB = "/jq.v1.ClientService/WatchJob"
# One caller may have 64 MiB each way, and twice that in answers that came of long polls.
ROOM_MIB = 200
QUIET = 1.0  # seconds in which a server lets in nothing more


async def submit(channel: grpc.aio.Channel, payload: bytes, name: str = "other") -> str:
    """A job, over the wire as it is; returns its id."""
    spec = types_pb2.JobSpec(queue="default", payload=payload)
    call: Any = channel.unary_unary(
        SUBMIT,
        request_serializer=client_pb2.SubmitRequest.SerializeToString,
        response_deserializer=client_pb2.SubmitResponse.FromString,
    )
    request = client_pb2.SubmitRequest(spec=spec)
    answer = await call(request, metadata=metadata(name), timeout=patience.longest(30))
    job_id: str = answer.job_id
    return job_id


async def listed(channel: grpc.aio.Channel, name: str) -> grpc.StatusCode:
    """How a short list of jobs is answered."""
    call: Any = channel.unary_unary(LIST_JOBS)
    request = client_pb2.ListJobsRequest(page_size=1).SerializeToString()
    made = call(request, metadata=metadata(name), timeout=patience.longest(30))
    code: grpc.StatusCode = await made.code()
    return code


async def settled(target: Target) -> None:
    """Wait until the server's memory does not grow any more."""
    highest, quiet = 0.0, 0
    async with patience.timeout(60):
        while quiet < 4:
            await answered(target)
            now = target.memory_mib("VmRSS")
            quiet = quiet + 1 if now < highest + 1 else 0
            highest = max(highest, now)
            await asyncio.sleep(0.2)


async def answered(target: Target) -> None:
    """Wait until the server's event loop has had a turn, however slow the machine is."""
    await asyncio.to_thread(target.ask, "GET", "/healthz", {})


async def test_answers_that_are_not_read_are_bounded(target: Target):
    """Before, each of them took its memory until its reader came."""
    async with target.channel() as channel:
        payload = b'"' + b"x" * (MIB - 1000) + b'"'
        job_id = await submit(channel, payload)
        await submit(channel, payload)
        requests: list[tuple[str, Message]] = [
            (LIST_JOBS, client_pb2.ListJobsRequest(page_size=2)),
            (GET_JOB, client_pb2.GetJobRequest(job_id=job_id)),
            (WAIT_JOB, client_pb2.WaitJobRequest(job_id=job_id, wait_seconds=0)),
        ]
        with target.watched() as seen:
            async with Frames(target.grpc_target, "client") as frames:
                for _ in range(100):
                    for method, request in requests:
                        await frames.call(method, request.SerializeToString())
                await settled(target)
                assert not frames.closed
                # Others are answered.
                assert await listed(channel, "other") is grpc.StatusCode.OK
                assert await listed(channel, "operator") is grpc.StatusCode.OK
        assert seen.grown_mib < ROOM_MIB
        seen.check_healthy()
        async with patience.timeout(60):
            # With the connection that did not read, its caller has room again.
            while await listed(channel, "client") is not grpc.StatusCode.OK:
                await asyncio.sleep(0.1)


async def test_messages_that_do_not_end_are_bounded(target: Target):
    """Before, 100 messages of 4 MiB without their last bytes took 400 MiB for ever."""
    size = MIN_RECEIVE_BYTES
    unfinished = message(b"\x12" * (size - 1000), size)
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(target.channel())
        attackers = [
            await stack.enter_async_context(Frames(target.grpc_target, name))
            for name in ("client", "client", "client")
        ]
        with target.watched() as seen:
            left = {
                (frames, frames.begin(SUBMIT_BATCH)): unfinished
                for frames in attackers
                for _ in range(20)
            }
            await send_on(target, left)
            assert await listed(channel, "other") is grpc.StatusCode.OK
            assert await listed(channel, "operator") is grpc.StatusCode.OK
        assert sum(not rest for rest in left.values()) < 20
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_the_message_of_a_watch_is_bounded_like_that_of_a_call(target: Target):
    """Nobody needs a key to watch the server's health."""
    size = MIN_RECEIVE_BYTES
    unfinished = message(b"\x12" * (size - 1000), size)
    # Without a key there is room for 4 such messages: 32 of them would be 128 MiB.
    for method, count, room in (
        ("/grpc.health.v1.Health/Watch", 32, ROOM_MIB / 2),
        (WATCH_JOB, 60, ROOM_MIB),
    ):
        async with Frames(target.grpc_target, "client") as frames:
            with target.watched() as seen:
                left = {(frames, frames.begin(method)): unfinished for _ in range(count)}
                await send_on(target, left)
        assert seen.grown_mib < room
        seen.check_healthy()


async def test_messages_of_many_addresses_are_bounded_together(target: Target):
    """Before, each address could have one: whoever has networks of addresses had all the memory."""
    size = MIN_RECEIVE_BYTES
    unfinished = message(b"\x12" * (size - 1000), size)
    async with contextlib.AsyncExitStack() as stack:
        attackers = [
            await stack.enter_async_context(
                Frames(target.grpc_target, "client", source=f"127.1.0.{n + 1}")
            )
            for n in range(80)
        ]
        channel = await stack.enter_async_context(target.channel())
        with target.watched() as seen:
            left = {
                (frames, frames.begin("/grpc.health.v1.Health/Check")): unfinished
                for frames in attackers
            }
            await send_on(target, left)
            # An orchestrator is answered meanwhile.
            probe: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            await probe(b"", timeout=patience.longest(30))
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_who_has_many_names_or_addresses_has_no_more_room():
    room = MessageBytes(10)
    among = [f"address {n}" for n in range(1000)]
    taken = [account for account in among if room.take(account)]
    assert len(taken) == 128
    # The next ones wait for those that were let in beyond what there is, and for no others.
    waiting = asyncio.create_task(room.wait("address of a newcomer"))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.change(taken[0], 10, 0)
    async with patience.timeout(10):
        await waiting


async def test_what_was_refused_is_not_kept(target: Target):
    """Before, the frames of a refused call kept its message until the collector came by."""
    too_large = b'"' + b"x" * (3 * MIB) + b'"'
    batch = client_pb2.SubmitBatchRequest(specs=[types_pb2.JobSpec()] * 5_000)
    async with target.channel() as channel:
        submit_batch: Any = channel.unary_unary(
            SUBMIT_BATCH,
            request_serializer=client_pb2.SubmitBatchRequest.SerializeToString,
            response_deserializer=client_pb2.SubmitBatchResponse.FromString,
        )
        with target.watched() as seen:
            for _ in range(80):
                with pytest.raises(grpc.aio.AioRpcError, match="payload"):
                    await submit(channel, too_large, "client")
            for _ in range(20):
                answer = await submit_batch(
                    batch, metadata=metadata("client"), timeout=patience.longest(30)
                )
                assert all(result.HasField("error") for result in answer.results)
    assert seen.grown_mib < ROOM_MIB / 2


async def send_some(left: dict[tuple[Frames, int], bytes]) -> bool:
    """Send as much as the server lets in at once; whether that was anything."""
    sent = 0
    for (frames, stream), rest in left.items():
        if rest:
            now = await frames.send(stream, rest)
            left[frames, stream] = rest[now:]
            sent += now
    return sent > 0


async def send_on(target: Target, left: dict[tuple[Frames, int], bytes]) -> None:
    """Send until the server has let in nothing for a second, and answers others meanwhile.

    That is longer than it waits for messages that do not come while others want their room.
    """
    loop = asyncio.get_running_loop()
    last = loop.time()
    while any(left.values()):
        if await send_some(left):
            last = loop.time()
        elif loop.time() - last > QUIET:
            await answered(target)
            if not await send_some(left):
                return
            last = loop.time()
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with few places for calls, and keys."""
    with processes.server(
        tmp_path_factory.mktemp("small"),
        *("--db-url", "memory://", "--worker-concurrency", "0"),
        JQ_AUTH_API_KEYS=API_KEYS,
        JQ_LIMITS_CALLS="40",
        JQ_LIMITS_CALLS_PER_CALLER="20",
    ) as service:
        yield Target(service)


async def test_callers_whose_messages_do_not_come_leave_places_for_others(small: Target):
    """Before, two keys held every place for ever, and workers and operators got none."""
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(small.channel())
        for name in ("client", "other"):
            frames = await stack.enter_async_context(Frames(small.grpc_target, name, reads=True))
            for _ in range(40):
                frames.begin(SUBMIT_BATCH)
            async with patience.timeout(30):
                while len(frames.ended) < 20:  # those that were refused
                    await frames.moved()
        for name in ("operator", "worker"):
            call: Any = channel.unary_unary("/jq.v1.WorkerService/MissingQueues")
            if name == "operator":
                call = channel.unary_unary("/jq.v1.OperatorService/ListQueues")
            await call(b"", metadata=metadata(name), timeout=patience.longest(10))


@contextlib.asynccontextmanager
async def authorized_server(
    handler: grpc.RpcMethodHandler[Any, Any], name: str, budgets: Budgets | None = None
) -> AsyncIterator[str]:
    """A server whose ClientService has this one method; gives its address."""
    server = grpc.aio.server()
    authorizer = GrpcAuthorizer(Access(), Calls(), budgets)
    service = grpc.method_handlers_generic_handler("jq.v1.ClientService", {name: handler})
    authorizer.before(server).add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def answer_at_once(request: Any, context: Any) -> client_pb2.SubmitResponse:
    """Stands in for a service."""
    return client_pb2.SubmitResponse(job_id="1")


async def test_a_call_ends_whose_message_does_not_come(monkeypatch: pytest.MonkeyPatch):
    """And its place and its room are free again."""
    monkeypatch.setattr(messages, "LONGEST", 0.5)
    monkeypatch.setattr(messages, "LONGEST_IF_SCARCE", 0.5)
    monkeypatch.setattr(messages, "_LOOK", 0.05)
    budgets = Budgets()
    handler = grpc.unary_unary_rpc_method_handler(
        answer_at_once,
        client_pb2.SubmitRequest.FromString,
        client_pb2.SubmitResponse.SerializeToString,
    )
    async with (
        authorized_server(handler, "Submit", budgets) as target,
        Frames(target, "client", reads=True) as frames,
    ):
        streams = {frames.begin(SUBMIT) for _ in range(80)}  # there is room for 64
        for stream in streams:
            await frames.send(stream, message(b"", 100))
        async with patience.timeout(30):
            while frames.ended != streams or budgets.under_way(BudgetKind.CALL):
                await frames.moved(0.1)
        stream = await frames.call(SUBMIT, b"")
        async with patience.timeout(30):
            while stream not in frames.ended:
                await frames.moved()
        assert frames.received[stream]


async def test_a_batch_has_no_effect_before_its_answer_has_room():
    """Before, all that came had its effect, and took memory for an answer that nobody read."""
    begun = 0

    async def submit_batch(request: Any, context: Any) -> client_pb2.SubmitBatchResponse:
        nonlocal begun
        begun += 1
        results = [client_pb2.SubmitResult(job_id="x" * 500)] * len(request.specs)
        return client_pb2.SubmitBatchResponse(results=results)

    handler = grpc.unary_unary_rpc_method_handler(
        submit_batch,
        client_pb2.SubmitBatchRequest.FromString,
        client_pb2.SubmitBatchResponse.SerializeToString,
    )
    batch = client_pb2.SubmitBatchRequest(specs=[types_pb2.JobSpec()] * 10_000)
    data = message(batch.SerializeToString())
    async with authorized_server(handler, "SubmitBatch") as target:
        async with Frames(target, "client") as frames:
            left = {(frames, frames.begin(SUBMIT_BATCH)): data for _ in range(60)}
            async with patience.timeout(30):
                while any(left.values()) or begun <= 15:
                    await send_some(left)
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)  # in which no more may begin
            # They came. There is room for 26 such answers, and a quarter is kept for others.
            assert 15 < begun < 25
            assert not frames.ended
        async with Frames(target, "client", reads=True) as frames:
            stream = frames.begin(SUBMIT_BATCH)
            assert await frames.send(stream, data, end=True) == len(data)
            async with patience.timeout(30):
                while stream not in frames.ended:
                    await frames.moved()
            assert frames.received[stream]
