"""Health is open to everybody: no watcher may keep the news from the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobqueue.api.grpc.server import SERVICES, GrpcFace
from jobqueue.engine.engine import Engine
from jobqueue.server.process import ServerProcess
from jobqueue.stores.memory import MemoryStore
from jobqueue.taskqueue.grpc.host import ServiceHost
from tests import patience
from tests.hostile.known_callers import key_of, serving

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
GRACE = 3.0  # seconds; used up by the watcher that takes nothing only


@asynccontextmanager
async def watched(face: GrpcFace | ServiceHost) -> AsyncIterator[tuple[int, Any]]:
    """A face that listens, and a stub of its health service."""
    port = await face.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield port, health_pb2_grpc.HealthStub(channel)
    await patience.wait_for(face.stop(GRACE), 30)


def a_face() -> GrpcFace:
    return GrpcFace(Engine(MemoryStore()))


def asked(name: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


async def status(watch: Any) -> int:
    answer = await patience.wait_for(watch.read(), 20)
    return answer.status if answer is not grpc.aio.EOF else -1


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


@asynccontextmanager
async def deaf_watcher(port: int) -> AsyncIterator[None]:
    """A watch whose client allows the server to send nothing: its HTTP/2 windows are empty."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    no_window = _frame(4, 0, 0, b"\x00\x04" + bytes(4))
    message = _frame(0, 1, 1, bytes(5))  # an empty one, and the end of this side
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_window + _frame(1, 4, 1, block) + message)
    try:
        async with patience.timeout(20):
            while True:  # until the answer's headers are there: only the status is held back
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == 4 and not head[4] & 1:
                    writer.write(_frame(4, 1, 0, b""))
                if head[3] == 1:
                    break
        yield
    finally:
        writer.close()


async def test_a_watcher_that_takes_nothing_holds_up_nobody():
    face = a_face()
    async with watched(face) as (port, stub), deaf_watcher(port):
        watch = stub.Watch(asked())
        assert await status(watch) == SERVING
        assert (await stub.Check(asked())).status == SERVING
        await patience.wait_for(face.stop(GRACE), 30)
        assert await status(watch) == NOT_SERVING


async def test_a_watcher_that_leaves_does_not_take_the_news_from_the_others():
    face = a_face()
    async with watched(face) as (_, stub):
        stays, leaves = stub.Watch(asked()), stub.Watch(asked())
        assert [await status(stays), await status(leaves)] == [SERVING, SERVING]
        leaves.cancel()
        assert (await stub.Check(asked())).status == SERVING
        await patience.wait_for(face.stop(GRACE), 30)
        assert await status(stays) == NOT_SERVING


@pytest.mark.parametrize("face", [a_face, lambda: ServiceHost("job")], ids=["server", "service"])
async def test_names_are_answered_as_the_protocol_says(face):
    async with watched(face()) as (_, stub):
        watch = stub.Watch(asked("unknown"))
        assert await status(watch) == UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(asked("unknown"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "unknown" in (refused.value.details() or "")
        watch.cancel()


async def test_every_service_is_watched_by_its_name():
    face = a_face()
    async with watched(face) as (_, stub):
        watches = [stub.Watch(asked(name)) for name in ("", *SERVICES)]
        assert {await status(watch) for watch in watches} == {SERVING}
        await patience.wait_for(face.stop(GRACE), 30)
        assert {await status(watch) for watch in watches} == {NOT_SERVING}


@pytest.mark.parametrize("face", [a_face, lambda: ServiceHost("job")], ids=["server", "service"])
async def test_the_list_names_every_service(face):
    async with watched(face()) as (_, stub):
        everything = health_pb2.HealthListRequest()  # type: ignore[attr-defined]
        listed = (await stub.List(everything)).statuses
        assert "" in listed
        assert {answer.status for answer in listed.values()} == {SERVING}


async def told(server: ServerProcess, headers: dict[str, str]) -> tuple[set[str], str]:
    """The parts that /readyz names, and all that it says beside their names."""
    async with httpx.AsyncClient(timeout=patience.longest(10), trust_env=False) as client:
        answer = await client.get(f"{server.http_url}/readyz", headers=headers)
    assert answer.status_code == 200, answer.text
    parts = answer.json()["components"]
    assert all(part["ok"] for part in parts)
    return {part["name"] for part in parts}, " ".join(part["detail"] for part in parts)


async def test_strangers_learn_whether_a_server_is_ready_and_not_where_its_parts_are(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    strangers = [{}, {"X-API-Key": "a-wrong-key-0123456789"}, {"X-API-Key": key_of("web")}]
    async with serving(url) as server:
        names, details = await told(server, {"X-API-Key": key_of("ops")})
        assert "sqlite" in details
        for headers in strangers:
            assert (await told(server, headers)) == (names, " " * (len(names) - 1))
    async with serving(url, known=False) as server:  # where everybody may do everything
        assert "sqlite" in (await told(server, {}))[1]
