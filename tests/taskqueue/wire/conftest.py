"""Real servers and clients on free ports of this machine."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from jobqueue.core.waiting import remaining
from jobqueue.logs import JsonFormatter
from jobqueue.taskqueue.components.model import Actor
from jobqueue.taskqueue.grpc import peer as peer_module
from jobqueue.taskqueue.grpc import remote as remote_module
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.peer import Peer
from jobqueue.taskqueue.grpc.remote import RemoteTaskQueue
from jobqueue.taskqueue.grpc.servicers import (
    CoordinatorServicer,
    JobServicer,
    PublicServicer,
    QueueServicer,
    ResultServicer,
)
from tests.access.certificates import Authority
from tests.taskqueue.wire import parts

SERVICERS: dict[str, Any] = {
    "public": PublicServicer,
    "jobs": JobServicer,
    "queue": QueueServicer,
    "results": ResultServicer,
    "coordination": CoordinatorServicer,
}


class Services:
    """One host with all five services over parts that the test gives."""

    def __init__(self, host: ServiceHost, port: int, tap: parts.Tap, given: dict[str, Any]) -> None:
        self.host = host
        self.port = port
        self.target = f"127.0.0.1:{port}"
        self.tap = tap
        self.parts = given

    def calls(self) -> list[str]:
        """Return the calls that reached the parts."""
        return [call[0] for part in self.parts.values() for call in part.calls]


Serve = Callable[..., Awaitable[Services]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    hosts: list[ServiceHost] = []

    async def start(port: int = 0, host: ServiceHost | None = None, **given: Any) -> Services:
        tap = parts.Tap()
        host = host or ServiceHost("test", interceptors=[tap])
        chosen = {
            "public": parts.task_queue(),
            "jobs": parts.jobs(),
            "queue": parts.queue(),
            "results": parts.results(),
            "coordination": parts.coordination(),
            **given,
        }
        for name, part in chosen.items():
            host.add(partial(SERVICERS[name], part))
        bound = await host.start("127.0.0.1", port)
        hosts.append(host)
        return Services(host, bound, tap, chosen)

    yield start
    for host in hosts:
        await host.stop(0)


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(target: str, caller: Actor = Actor.GATEWAY, service: str = "job", **more: Any) -> Peer:
        peers.append(Peer(target, service, caller, **more))
        return peers[-1]

    yield make
    for one in peers:
        await one.close()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Callable[..., RemoteTaskQueue]]:
    clients: list[RemoteTaskQueue] = []

    def make(target: str, credentials: Any = None) -> RemoteTaskQueue:
        clients.append(RemoteTaskQueue(target, credentials))
        return clients[-1]

    yield make
    for one in clients:
        await one.close()


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[Callable[[str], grpc.aio.Channel]]:
    channels: list[grpc.aio.Channel] = []

    def make(target: str) -> grpc.aio.Channel:
        channels.append(grpc.aio.insecure_channel(target))
        return channels[-1]

    yield make
    for one in channels:
        await one.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have more time than the document gives them, for tests that are not about time."""
    for module in (peer_module, remote_module):
        monkeypatch.setattr(module, "remaining", lambda most: remaining(20.0))


class Lines:
    """The log as a file would have it."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def of(self, *events: str) -> list[dict[str, Any]]:
        return [line for line in self.all() if line.get("event") in events]


@pytest.fixture
def lines() -> Iterator[Lines]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("gateway"))
    root = logging.getLogger()
    root.addHandler(handler)
    yield Lines(stream)
    root.removeHandler(handler)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("taskqueue-certificates"))
