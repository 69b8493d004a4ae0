"""A call whose name or metadata is no text is one call that fails, whoever sends it."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.api.grpc import aio_server
from jobqueue.taskqueue.grpc.host import ServiceHost
from tests import patience
from tests.hostile.frames import Frames, message
from tests.hostile.target import KEYS, Target

SUBMIT = "/jq.v1.ClientService/Submit"
NAMES = [
    "\udcff",
    "/\udcff\udcfe",
    "/jq.v1.ClientService/\udcff",
    "/jq.v1.\udcc3/Submit",
    f"{SUBMIT}\udcff",
]
NO_TEXT = "\udcff\udcfe"


async def ended(frames: Frames, stream: int) -> None:
    limit = patience.Limit(20)
    while stream not in frames.ended and not frames.closed:
        assert not limit.over, "the call does not end"
        await frames.moved()


async def send(target: str, name: str, more: tuple[tuple[str, str], ...] = ()) -> bool:
    """Make a call with these bytes; True: the server has ended it, and not the connection."""
    async with Frames(target, reads=True) as stranger:
        stream = stranger.begin(name, more)
        await stranger.send(stream, message(b""), end=True)
        await ended(stranger, stream)
        return not stranger.closed


@pytest.mark.e2e
@pytest.mark.parametrize("name", NAMES)
async def test_a_call_with_a_name_that_is_no_text_ends_no_other(target: Target, name: str):
    async with target.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        async with patience.timeout(20):
            await watch.read()
        assert await send(target.grpc_target, name)
        assert await send(target.grpc_target, SUBMIT), "the server takes no calls any more"
        assert not watch.done(), "a call that was under way has ended"
        watch.cancel()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "entry",
    [
        ("authorization", f"Bearer {KEYS['client']}{NO_TEXT}"),
        ("x-api-key", KEYS["client"] + NO_TEXT),
        ("user-agent", NO_TEXT),
        ("x-forged", f"key {KEYS['client']} {NO_TEXT}"),
    ],
)
async def test_metadata_that_is_no_text_is_not_in_the_log(target: Target, entry: tuple[str, str]):
    before = len(target.service.lines), len(target.service.noise)
    assert await send(target.grpc_target, SUBMIT, (entry,))
    target.ask("GET", "/healthz", {})
    target.service.line("job.submit: UNAUTHENTICATED")
    lines = target.service.lines[before[0] :]
    assert KEYS["client"] not in str(lines)
    assert all(line["level"] == "INFO" for line in lines), lines
    assert target.service.noise[before[1] :] == []


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_of_the_task_queue_outlives_such_a_name(name: str):
    host = ServiceHost("gateway")
    port = await host.start("127.0.0.1", 0)
    try:
        for called in (name, "/grpc.health.v1.Health/Check", name):
            assert await send(f"127.0.0.1:{port}", called)
    finally:
        await host.stop(0.2)


def test_this_grpcio_is_one_that_the_server_fits():
    assert aio_server.fits()


@pytest.mark.e2e
async def test_what_grpc_cannot_read_is_not_in_the_log(target: Target):
    before = len(target.service.noise)
    for _ in range(20):
        await send(target.grpc_target, "/none", (("grpc-timeout", "x"),) * 10)
    target.ask("GET", "/healthz", {})
    assert target.service.noise[before:] == []
