"""Calls that come faster than the server's loop takes them wait for it, and are not turned away."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter

import grpc.aio

from jobqueue.api.grpc.channel import CALLS_PER_CONNECTION, client_options
from jobqueue.api.grpc.remote.backend import GrpcBackend
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc
from tests import patience

CALLS = 4_000  # gRPC by itself turns calls away at random from 1,000 on, and all from 3,000 on
ROUNDS = 4


async def _while_busy(calling: asyncio.Task[Counter[str]], sent: threading.Event) -> Counter[str]:
    async with patience.timeout(50):
        while not sent.is_set():
            await asyncio.sleep(0.01)
        time.sleep(1.0)  # the server's loop is busy while they come
        return await calling


async def test_the_calls_of_a_connection_are_all_answered(port: int) -> None:
    sent = threading.Event()

    async def call_all() -> Counter[str]:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=client_options()
        ) as channel:
            await channel.channel_ready()
            stub = client_pb2_grpc.ClientServiceStub(channel)

            async def call_in_turn() -> list[str]:
                found = []
                for _ in range(ROUNDS):
                    call = stub.GetLoad(client_pb2.GetLoadRequest())
                    await asyncio.sleep(0)  # it begins
                    found.append((await call.code()).name)
                return found

            calls = [asyncio.create_task(call_in_turn()) for _ in range(CALLS_PER_CONNECTION)]
            await asyncio.sleep(0.1)
            sent.set()
            return Counter(name for found in await asyncio.gather(*calls) for name in found)

    calling = asyncio.create_task(asyncio.to_thread(asyncio.run, call_all()))
    assert await _while_busy(calling, sent) == {"OK": ROUNDS * CALLS_PER_CONNECTION}


async def test_thousands_of_calls_of_an_app_at_once_are_all_answered(port: int) -> None:
    sent = threading.Event()

    async def call_all() -> Counter[str]:
        backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.longest(40))
        try:
            await backend.list_queues()
            calls = [asyncio.create_task(backend.list_queues()) for _ in range(CALLS)]
            await asyncio.sleep(0.1)
            sent.set()
            await asyncio.gather(*calls)
            return Counter(OK=len(calls))
        finally:
            await backend.stop()

    calling = asyncio.create_task(asyncio.to_thread(asyncio.run, call_all()))
    assert await _while_busy(calling, sent) == {"OK": CALLS}


async def test_a_server_does_not_look_gone_for_the_calls_that_this_process_has_there(
    remote: GrpcBackend,
) -> None:
    """Else all that is connected would move to another server, and back from there."""
    (server,) = remote._servers._all
    while not server._short.locked():
        await server._short.acquire()
    seen = await remote._servers._sample(server, "clients")
    assert seen is not None
    assert seen.seconds < math.inf
