"""The same scenarios through every face, on every deployment.

A face joins with a line in ``FACES``, a deployment (a store, later a topology) with a line in
``DEPLOYMENTS``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http import HttpFace, HttpSettings
from jobqueue.core.api import Backend, DispatchApi
from jobqueue.core.job import Queue
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests.api.public.face import PublicFace
from tests.api.public.hand import Hand
from tests.api.public.over_grpc import GrpcDriver
from tests.api.public.over_http import HttpDriver

MAX_PAYLOAD = 1024 * 1024

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "jobs.db"),
}


@dataclass
class Deployment:
    """A running system: where its faces listen, and what its workers connect to."""

    http_port: int
    grpc_port: int
    dispatch: DispatchApi
    stop: Callable[[], Awaitable[None]]


async def embedded(store: Store) -> Deployment:
    """One process: an engine, both faces."""
    queue = Queue(name="default", max_retries=3)
    engine = Engine(store, EngineSettings(queue=queue, max_payload_bytes=MAX_PAYLOAD))
    backend: Backend = engine
    await backend.start()
    http = HttpFace(backend, HttpSettings(max_payload_bytes=MAX_PAYLOAD))
    grpc = GrpcFace(backend)

    async def stop() -> None:
        await http.stop(1)
        await grpc.stop(1)
        await backend.stop()

    return Deployment(
        await http.start("127.0.0.1", 0), await grpc.start("127.0.0.1", 0), backend, stop
    )


DEPLOYMENTS: dict[str, Callable[[Path], Awaitable[Deployment]]] = {
    "memory": lambda folder: embedded(STORES["memory"](folder)),
    "sqlite": lambda folder: embedded(STORES["sqlite"](folder)),
}
FACES: dict[str, Callable[[Deployment], PublicFace]] = {
    "http": lambda deployment: HttpDriver(deployment.http_port),
    "grpc": lambda deployment: GrpcDriver(deployment.grpc_port),
}


@pytest_asyncio.fixture(params=DEPLOYMENTS)
async def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    running = await DEPLOYMENTS[request.param](tmp_path)
    yield running
    await running.stop()


@pytest_asyncio.fixture(params=FACES)
async def face(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[PublicFace]:
    driver = FACES[request.param](deployment)
    yield driver
    await driver.close()


ConnectHand = Callable[..., Awaitable[Hand]]


@pytest_asyncio.fixture
async def connect_hand(deployment: Deployment) -> AsyncIterator[ConnectHand]:
    """Connect a worker that does as it is told; it leaves with the test."""
    hands: list[Hand] = []

    async def connect(**how: object) -> Hand:
        hands.append(await Hand.connect(deployment.dispatch, **how))  # type: ignore[arg-type]
        return hands[-1]

    yield connect
    for hand in hands:
        await hand.link.close()


@pytest_asyncio.fixture
async def hand(connect_hand: ConnectHand) -> Hand:
    """A worker on the default queue, without free slots yet."""
    return await connect_hand()
