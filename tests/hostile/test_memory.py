"""A few bytes from an attacker must not take the server's memory or its time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from jobqueue.access.rules import MAX_BATCH, MAX_HEADERS, MAX_QUESTIONS
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.engine.engine import Engine
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2
from tests import patience
from tests.hostile.frames import Frames
from tests.hostile.target import Target, metadata

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SUBMIT_BATCH = "/jq.v1.ClientService/SubmitBatch"
SUBMIT_STREAM = "/jq.v1.ClientService/SubmitStream"
EMPTY_SPECS = b"\x0a\x00" * 2_000_000  # 4 MB that become 2,000,000 objects
# The server reads messages of up to 4 MiB; what is more than a few of them was built.
ROOM_MIB = 60


async def refusal(call) -> grpc.aio.AioRpcError:
    """How a call was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


def unary(channel: grpc.aio.Channel, method: str, data: bytes, name: str = "", **more):
    """Send bytes as they are."""
    call: Any = channel.unary_unary(method)
    shown = metadata(name) if name else ()
    return call(data, metadata=shown, timeout=patience.longest(60), **more)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
async def test_an_unknown_caller_takes_no_memory(target: Target, compression):
    async with target.channel() as channel:
        with target.watched() as seen:
            for _ in range(3):
                calls = [
                    refusal(unary(channel, SUBMIT_BATCH, EMPTY_SPECS, compression=compression))
                    for _ in range(4)
                ]
                codes = {error.code() for error in await asyncio.gather(*calls)}
                assert codes <= {
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.UNIMPLEMENTED,
                }
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_request_is_refused(target: Target, compression):
    async with target.channel() as channel:
        error = await refusal(
            unary(channel, SUBMIT_BATCH, EMPTY_SPECS[:2000], "client", compression=compression)
        )
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ompression" in str(error.details())


@pytest.mark.parametrize("item", [b"\x0a\x00", b"\x8a\x00\x00", b"\x8a\x80\x80\x80\x00\x80\x00"])
async def test_a_batch_is_counted_before_it_is_built(target: Target, item):
    """However the tags are written: a number may have more bytes than it needs."""
    data = item * (4_000_000 // len(item))
    async with target.channel() as channel:
        with target.watched() as seen:
            for _ in range(5):
                error = await refusal(unary(channel, SUBMIT_BATCH, data, "client"))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert f"specs: at most {MAX_BATCH} in one message" in str(error.details())
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_a_message_of_a_stream_is_counted_before_it_is_built(target: Target):
    """Before, 500,000 empty specs took 820 MB and the server was gone for 70 s."""

    async def messages() -> AsyncIterator[bytes]:
        yield b"\x08\x01" + b"\x12\x00" * 500_000

    async with target.channel() as channel:
        with target.watched() as seen:
            for _ in range(3):
                begin: Any = channel.stream_stream(SUBMIT_STREAM)
                call = begin(messages(), metadata=metadata("client"), timeout=patience.longest(60))
                error = await refusal(anext(aiter(call)))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert f"specs: at most {MAX_BATCH} in one message" in str(error.details())
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


@pytest.mark.parametrize(
    ("method", "name", "data", "told"),
    [
        ("WorkerService/Report", "worker", b"\x1a\x00" * 2_000_000, "reports: at most"),
        ("WorkerService/Heartbeat", "worker", b"\x32\x00" * 2_000_000, "progress: at most"),
        (
            "WorkerService/Heartbeat",
            "worker",
            b"\x1a\x80\xd4\x61" + b"\x01" * 1_600_000,
            "leases: at most",
        ),
        ("WorkerService/MissingQueues", "worker", b"\x0a\x00" * 2_000_000, "names: at most"),
        (
            "WorkerService/Register",
            "worker",
            b"\x0a\x80\x92\xf4\x01" + b"\x32\x00" * 2_000_000,
            "worker.queues: at most",
        ),
        (
            "ClientService/ListJobs",
            "client",
            b"\x10\x01" * 2_000_000,
            "states: at most",
        ),
        ("OperatorService/UpdateQueue", "operator", b"\x12\x00" * 2_000_000, "reset: at most"),
        (
            "ClientService/Submit",
            "client",
            b"\x0a\x80\x92\xf4\x01" + b"\x5a\x00" * 2_000_000,
            "spec.labels: at most",
        ),
        ("ClientService/Submit", "client", b"\x78\x00" * 2_000_000, "request: holds too many"),
    ],
)
async def test_every_list_is_counted_before_it_is_built(target: Target, method, name, data, told):
    if told.startswith("request:"):
        # Fields that nobody knows are looked at only beside bytes that could be items.
        data = data[: len(data) // 2] + b"\x0a\x80\x89\x7a" + b"\x5a" * 2_000_000
    async with target.channel() as channel:
        with target.watched() as seen:
            for _ in range(3):
                error = await refusal(unary(channel, f"/jq.v1.{method}", data, name))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert told in str(error.details())
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_a_message_of_a_workers_stream_is_counted_before_it_is_built(target: Target):
    worker = types_pb2.WorkerInfo(
        id="w", incarnation=7, hostname="h", pid=1, queues=["default"], concurrency=1
    )
    hello = worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=worker)).SerializeToString()

    async def messages() -> AsyncIterator[bytes]:
        yield hello
        yield b"\x12\x00" * 2_000_000

    async with target.channel() as channel:
        with target.watched() as seen:
            begin: Any = channel.stream_stream("/jq.v1.WorkerService/Connect")
            call = begin(messages(), metadata=metadata("worker"), timeout=patience.longest(60))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in call:
                    pass
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "reports: at most" in str(refused.value.details())
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_tiny_metadata_takes_no_memory(target: Target):
    """Before, each entry took many times its bytes for as long as its call."""
    many = [("a", "b")] * (2 * MAX_HEADERS - 60)  # gRPC itself refuses more bytes than these have
    streams = 0
    with target.watched() as seen:
        async with Frames(target.grpc_target, "client", reads=True) as frames:
            for _ in range(1_200):
                streams += 1
                frames.begin(SUBMIT_BATCH, many)
                if streams - len(frames.ended) > 300:
                    await frames.moved(0.05)
            async with patience.timeout(60):
                while len(frames.ended) < streams:
                    await frames.moved()
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_a_call_may_have_the_metadata_of_many_proxies(target: Target):
    own = 2  # the credential, and gRPC's user agent
    async with target.channel() as channel:
        for count, expected in ((MAX_HEADERS - own, "OK"), (MAX_HEADERS, "RESOURCE_EXHAUSTED")):
            call: Any = channel.unary_unary("/jq.v1.WorkerService/MissingQueues")
            more = tuple((f"x-{number}", "1") for number in range(count))
            made = call(b"", metadata=(*metadata("worker"), *more), timeout=patience.longest(30))
            assert (await made.code()).name == expected
            if expected != "OK":
                assert f"at most {MAX_HEADERS} entries" in await made.details()


async def test_a_worker_asks_for_so_many_queues_at_most(target: Target):
    async with target.channel() as channel:
        call: Any = channel.unary_unary("/jq.v1.WorkerService/MissingQueues")
        for count, expected in ((MAX_QUESTIONS, "OK"), (MAX_QUESTIONS + 1, "INVALID_ARGUMENT")):
            names = [f"q{number}" for number in range(count)]
            asked = worker_pb2.MissingQueuesRequest(names=names).SerializeToString()
            made = call(asked, metadata=metadata("worker"), timeout=patience.longest(30))
            assert (await made.code()).name == expected


def calls_in_memory() -> int:
    """How many calls a server of this process has not freed."""
    return sum(type(one).__name__ == "RPCState" for one in gc.get_objects())


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("/jq.v1.ClientService/GetLoad", b""),
        ("/jq.v1.ClientService/GetJob", b"\x0a\x01x"),  # there is no such job
        ("/jq.v1.ClientService/GetJob", b"\xff"),  # not a request
        ("/jq.v1.OperatorService/ListQueues", b""),
        ("/grpc.health.v1.Health/Check", b"\x0a\x01x"),  # there is no such service
    ],
)
async def test_a_call_takes_no_memory_after_its_end(engine: Engine, method: str, data: bytes):
    """Before, each waited for the garbage collector, with its messages and buffers."""
    face = GrpcFace(engine)
    port = await face.start("127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            before = 0
            for _ in range(50):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await unary(channel, method, data)
                before = before or calls_in_memory()  # a server holds the next one of each method
            async with patience.timeout(10):
                while calls_in_memory() > before + 5:
                    await asyncio.sleep(0.05)
    finally:
        gc.enable()
        await face.stop(1)
