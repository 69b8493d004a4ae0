"""The same scenarios through every face, on every deployment.

A face joins with a line in ``FACES``, a deployment (a store, later a topology) with a line in
``DEPLOYMENTS``. `make test` runs each scenario through every face in memory, and on each other
deployment through one face, in turn. `make test-nightly` runs the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.config import load
from jobqueue.core.api import Backend, DispatchApi
from jobqueue.core.queue import Queue
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.server.process import ServerProcess
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.postgres.store import PostgresStore
from jobqueue.stores.redis.store import RedisStore
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.api.public.face import PublicFace
from tests.api.public.hand import Hand
from tests.api.public.over_grpc import GrpcDriver
from tests.api.public.over_http import HttpDriver

MAX_PAYLOAD = 1024 * 1024


@dataclass
class Deployment:
    """A running system: where its faces listen, and what its workers connect to."""

    http_ports: Sequence[int]
    grpc_ports: Sequence[int]
    dispatch: DispatchApi
    stop: Callable[[], Awaitable[None]]


async def embedded(store: Store) -> Deployment:
    """One process: an engine, both faces."""
    queue = Queue(name="default", max_retries=3)
    engine = Engine(store, EngineSettings(queue=queue, max_payload_bytes=MAX_PAYLOAD))
    backend: Backend = engine
    await backend.start()
    http = HttpFace(backend, HttpFaceSettings(max_payload_bytes=MAX_PAYLOAD))
    grpc = GrpcFace(backend)

    async def stop() -> None:
        await http.stop(1)
        await grpc.stop(1)
        await backend.stop()

    return Deployment(
        [await http.start("127.0.0.1", 0)], [await grpc.start("127.0.0.1", 0)], backend, stop
    )


async def replicated(dsn: str, redis_url: str) -> Deployment:
    """Two servers on one PostgreSQL and one Redis, as jq-server wires them.

    Calls go to one and the other in turn: what is written at one is read at the other. Workers
    know both, and are connected to either.
    """
    told = {
        "db.url": dsn,
        "redis.url": redis_url,
        "http.port": "0",
        "grpc.port": "0",
        "server.shutdown_timeout": "4",
    }
    servers = [ServerProcess(load(flags=told, environ={}).settings) for _ in range(2)]
    for server in servers:
        await server.start()
    workers_side = GrpcBackend(
        ",".join(server.grpc_target for server in servers), timeout=patience.longest(30)
    )

    async def stop() -> None:
        await workers_side.stop()
        for server in servers:
            await server.stop()

    return Deployment(
        [urlsplit(server.http_url).port or 0 for server in servers],
        [int(server.grpc_target.rpartition(":")[2]) for server in servers],
        workers_side,
        stop,
    )


Ask = Callable[[str], Any]
"""Gives a fixture by its name: only what a deployment needs is made."""

DEPLOYMENTS: dict[str, Callable[[Ask], Awaitable[Deployment]]] = {
    "memory": lambda ask: embedded(MemoryStore()),
    "sqlite": lambda ask: embedded(SqliteStore(ask("tmp_path") / "jobs.db")),
    "postgres": lambda ask: embedded(
        PostgresStore(ask("postgres_dsn"), patience=patience.stretched(5.0))
    ),
    "redis": lambda ask: embedded(RedisStore(ask("redis_url"), patience=patience.stretched(5.0))),
    "replicated": lambda ask: replicated(ask("postgres_dsn"), ask("redis_url")),
}
NAMES = [
    pytest.param(name, marks=[] if name in ("memory", "sqlite") else [pytest.mark.integration])
    for name in DEPLOYMENTS
]
FACES: dict[str, Callable[[Deployment], PublicFace]] = {
    "http": lambda deployment: HttpDriver(deployment.http_ports),
    "grpc": lambda deployment: GrpcDriver(deployment.grpc_ports),
}


@pytest_asyncio.fixture(params=NAMES)
async def deployment(request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    running = await DEPLOYMENTS[request.param](request.getfixturevalue)
    yield running
    await running.stop()


@pytest_asyncio.fixture(params=FACES)
async def face(request: pytest.FixtureRequest, deployment: Deployment) -> AsyncIterator[PublicFace]:
    driver = FACES[request.param](deployment)
    yield driver
    await driver.close()


EVERY_FACE = "memory"  # the deployment on which no scenario is left to the night
AT_NIGHT = "make test runs it on this deployment through another face, and in memory through this"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        chosen = getattr(getattr(item, "callspec", None), "params", {})
        if {"deployment", "face"} <= chosen.keys() and item.path.parent == here:
            deployment, face = chosen["deployment"], chosen["face"]
            if deployment != EVERY_FACE and face != _face_in_turn(item, face):
                item.add_marker(pytest.mark.nightly(AT_NIGHT))


def _face_in_turn(item: pytest.Item, face: str) -> str:
    """Return the one face through which `make test` runs a scenario on a deployment."""
    case = item.nodeid.replace(face, "")
    return list(FACES)[zlib.crc32(case.encode()) % len(FACES)]


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
