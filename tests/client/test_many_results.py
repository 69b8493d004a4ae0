"""Many callers wait for results at once: the server asks the store for all of them together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from jobqueue import Job, JobQueue
from jobqueue.config import load
from jobqueue.server.process import ServerProcess
from tests import patience

JOBS = 300


class Server:
    """A jq-server on PostgreSQL, and how often it did what."""

    def __init__(self, dsn: str) -> None:
        flags = {"db.url": dsn, "db.pool_size": "8", "http.enabled": "false", "grpc.port": "0"}
        self._server = ServerProcess(load(flags=flags, environ={}).settings)
        self.counted: Counter[str] = Counter()
        self._wait = self._server.backend.wait

    async def start(self) -> str:
        """Returns its URL."""
        self._server.metrics.queried = self._queried  # type: ignore[method-assign]
        self._server.backend.wait = self._waited  # type: ignore[method-assign]
        await self._server.start()
        return f"grpc://{self._server.grpc_target}"

    async def stop(self) -> None:
        await self._server.stop()

    def _queried(self, name: str, seconds: float) -> None:
        self.counted[name] += 1

    async def _waited(self, job_id: str, timeout: float | None) -> Job:
        self.counted["wait"] += 1
        return await self._wait(job_id, timeout)


StartServer = Callable[[], Awaitable[tuple[Server, str]]]


@pytest_asyncio.fixture
async def start_server(postgres_dsn: str) -> AsyncIterator[StartServer]:
    servers: list[Server] = []

    async def start() -> tuple[Server, str]:
        server = Server(postgres_dsn)
        servers.append(server)
        return server, await server.start()

    yield start
    for server in reversed(servers):
        await server.stop()


@pytest.mark.integration
@pytest.mark.parametrize("reports_go", ["to the same server", "to another server"])
async def test_a_result_is_read_twice_however_long_it_is_waited_for(
    start_server: StartServer, reports_go: str
) -> None:
    server, url = await start_server()
    reported_to = url if reports_go == "to the same server" else (await start_server())[1]
    counted = server.counted
    worker_app = JobQueue(reported_to)

    @worker_app.task
    async def echo(number: int) -> int:
        return number

    async with JobQueue(url) as app, worker_app, patience.timeout(50):
        jobs = await asyncio.gather(*(app.submit("echo", n) for n in range(JOBS)))
        results = asyncio.gather(*(job.result() for job in jobs))
        while counted["moved_on"] < 3 and counted["get"] < 2 * JOBS:
            await asyncio.sleep(0.05)
        assert counted["get"] < 2 * JOBS, "nothing has happened, and jobs are read again"
        async with worker_app.worker(concurrency=20):
            assert await results == list(range(JOBS))
    assert counted["get"] <= 2 * counted["wait"]
