"""Everything that serves ``taskqueue.v1``. Another one joins by its line in ``DEPLOYMENTS``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.config import load
from jobqueue.core.api import DispatchApi
from jobqueue.server.process import ServerProcess
from jobqueue.server.worker import WorkerProcess
from jobqueue.taskqueue.components.model import TOTAL_WORKER_SLOTS
from jobqueue.taskqueue.designs.wiring import DIRECT, Links
from jobqueue.taskqueue.engine_job import QUEUE
from tests import patience
from tests.taskqueue.public.twice import Twice
from tests.taskqueue.together import design_a, design_b


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The unusual needs of a scenario."""

    environ: Mapping[str, str] = field(default_factory=dict)  # of the document's services
    settings: Mapping[str, str] = field(default_factory=dict)  # of jq-server
    links: Links = DIRECT  # between the parts of the document's services
    workers: bool = True  # False: a jq-server has none


@dataclass
class Running:
    """A deployment that serves.

    ``routed``: each target has its own jobs, and callers choose. Otherwise all have the same.
    ``dispatch``: what workers connect to, where there is such a thing.
    """

    targets: Sequence[str]
    routed: bool = False
    dispatch: DispatchApi | None = None


Ask = Callable[[str], Any]
"""Gives a fixture by its name: only what a deployment needs is made."""

# No job of these tests is worth waiting for at the end, and idle workers ask often.
_ENVIRON = {"SHUTDOWN_TIMEOUT_MS": "0", "RETRY_AFTER_MS": "50"}
_SETTINGS = {
    "http.port": "0",
    "grpc.port": "0",
    "server.shutdown_timeout": "0",
    "worker.shutdown_timeout": "0",
    "worker.metrics_port": "0",
    "worker.concurrency": str(TOTAL_WORKER_SLOTS),
}


@asynccontextmanager
async def _microservices(wanted: Wanted) -> AsyncIterator[Running]:
    async with design_a({**_ENVIRON, **wanted.environ}, wanted.links) as addresses:
        yield Running([addresses["gateway"]])


@asynccontextmanager
async def _delivered_twice(wanted: Wanted) -> AsyncIterator[Running]:
    links = Twice(wanted.links)
    async with design_a({**_ENVIRON, **wanted.environ}, links) as addresses:
        yield Running([addresses["gateway"]])
    assert not links.differing


@asynccontextmanager
async def _nodes(wanted: Wanted) -> AsyncIterator[Running]:
    environ = {**_ENVIRON, **wanted.environ}
    async with design_b(environ=environ, links=wanted.links) as addresses:
        yield Running(addresses, routed=True)


@asynccontextmanager
async def _embedded(url: str, wanted: Wanted) -> AsyncIterator[Running]:
    """A jq-server with its built-in pool."""
    told = {**_SETTINGS, "db.url": url, **wanted.settings}
    if not wanted.workers:
        told["worker.concurrency"] = "0"
    async with _server(told) as server:
        yield Running([server.grpc_target], dispatch=server.backend)


@asynccontextmanager
async def _replicated(dsn: str, redis_url: str, wanted: Wanted) -> AsyncIterator[Running]:
    """Two jq-servers on one PostgreSQL and one Redis, and a worker that knows both."""
    told = {**_SETTINGS, "db.url": dsn, "redis.url": redis_url, **wanted.settings}
    slots = told.pop("worker.concurrency")  # said to a server, it would mean a pool there
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(_server(told)) for _ in range(2)]
        targets = [server.grpc_target for server in servers]
        if wanted.workers:
            told["worker.concurrency"] = slots
            await stack.enter_async_context(_worker(told, ",".join(targets)))
        workers_side = GrpcBackend(",".join(targets), timeout=patience.longest(30))
        stack.push_async_callback(workers_side.stop)
        yield Running(targets, dispatch=workers_side)


@asynccontextmanager
async def _server(told: Mapping[str, str]) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(load(flags=told, environ={}).settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def _worker(told: Mapping[str, str], servers: str) -> AsyncIterator[None]:
    settings = load(flags=told, environ={}).settings
    worker = WorkerProcess(settings, f"grpc://{servers}", queues=(QUEUE,))
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()


Start = Callable[[Wanted], AbstractAsyncContextManager[Running]]

DEPLOYMENTS: dict[str, Callable[[Ask], Start]] = {
    "microservices": lambda ask: _microservices,
    "microservices, delivered twice": lambda ask: _delivered_twice,
    "nodes": lambda ask: _nodes,
    "memory": lambda ask: partial(_embedded, "memory://"),
    "sqlite": lambda ask: partial(_embedded, f"sqlite:///{ask('tmp_path')}/jobs.db"),
    "replicated": lambda ask: partial(_replicated, ask("postgres_dsn"), ask("redis_url")),
}
NEED_SERVERS = frozenset({"replicated"})
"""Those that need a real PostgreSQL and Redis."""

STAMPED_ELSEWHERE = frozenset({"replicated"})
"""Those whose database says when a job was created: no test holds its clock."""
