"""Calls that come faster than the server's loop takes them wait for it, and are not turned away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import grpc.aio

from jobqueue.api.grpc.channel import client_options
from jobqueue.pb.jq.v1 import client_pb2, client_pb2_grpc
from tests import patience

CALLS = 4_000  # gRPC by itself turns calls away at random from 1,000 on, and all from 3,000 on


async def test_thousands_of_calls_at_once_are_all_answered(port: int) -> None:
    sent = threading.Event()

    async def call_all() -> Counter[str]:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=client_options()
        ) as channel:
            await channel.channel_ready()
            stub = client_pb2_grpc.ClientServiceStub(channel)
            calls = [stub.GetLoad(client_pb2.GetLoadRequest()) for _ in range(CALLS)]
            await asyncio.sleep(0)  # they begin
            sent.set()
            return Counter([(await call.code()).name for call in calls])

    calling = asyncio.create_task(asyncio.to_thread(asyncio.run, call_all()))
    async with patience.timeout(50):
        while not sent.is_set():
            await asyncio.sleep(0.01)
        time.sleep(1.0)  # the server's loop is busy while they come
        assert await calling == {"OK": CALLS}
