"""A real engine on a memory store behind a real server on a free port."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.core.api import Backend
from jobqueue.core.job import WorkerInfo
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience, ports
from tests.api.grpc.inbox import GatedEngine
from tests.api.grpc.proxy import Proxy

_incarnations = itertools.count(1000)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[GatedEngine]:
    engine = GatedEngine(MemoryStore())
    await engine.start()
    yield engine
    engine.open_gates()
    await engine.stop()


Serve = Callable[..., Awaitable[tuple[GrpcFace, int]]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    faces: list[GrpcFace] = []

    async def start(backend: Backend, port: int = 0, **options: object) -> tuple[GrpcFace, int]:
        face = GrpcFace(backend, **options)  # type: ignore[arg-type]
        bound = await face.start("127.0.0.1", port or ports.take())
        faces.append(face)
        return face, bound

    yield start
    for face in faces:
        await face.stop(0.2)


@pytest_asyncio.fixture
async def port(engine: Engine, serve: Serve) -> int:
    return (await serve(engine))[1]


@pytest_asyncio.fixture
async def proxy(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest_asyncio.fixture
async def remote(port: int) -> AsyncIterator[GrpcBackend]:
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    await backend.start()
    yield backend
    await backend.stop()


@pytest_asyncio.fixture
async def through_proxy(proxy: Proxy) -> AsyncIterator[GrpcBackend]:
    """A client whose connection the test can cut."""
    assert proxy._server is not None
    port = proxy._server.sockets[0].getsockname()[1]
    backend = GrpcBackend(f"127.0.0.1:{port}", timeout=patience.stretched(5))
    yield backend
    await backend.stop()


@pytest.fixture
def worker_info() -> Callable[..., WorkerInfo]:
    def make(id: str = "w1", concurrency: int = 4, **changes: object) -> WorkerInfo:
        fields: dict[str, object] = {
            "incarnation": next(_incarnations),
            "hostname": "here",
            "pid": 1,
            "queues": ("default",),
            **changes,
        }
        return WorkerInfo(id=id, concurrency=concurrency, **fields)  # type: ignore[arg-type]

    return make
