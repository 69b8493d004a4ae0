"""Start the private servers that scenarios need: PostgreSQL on a disk, Redis and Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from jobqueue.bench.machine import CpuTimes, calm
from jobqueue.bench.scenarios.catalogue import Sizes
from jobqueue.connect.backends import create_locks, create_store
from jobqueue.core.job import DEFAULT_QUEUE, Worker, WorkerStatus
from jobqueue.core.observer import Observer
from jobqueue.core.queue import QueueStats
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.fleet import services as supervised
from jobqueue.fleet.backing import PrivateKafka, PrivatePostgres, PrivateRedis, PrivateServer
from jobqueue.fleet.layout import BackingService

Say = Callable[[str], None]

_POLL = 0.1  # seconds: each poll reads a short table and must not slow the measured programs
_STUCK = 120.0  # seconds without any job that succeeded
_TITLES = {"postgres": "PostgreSQL", "redis": "Redis", "kafka": "Kafka"}
_TOLD = ("fsync", "max_connections", "max_wal_size", "shared_buffers", "synchronous_commit")


class Stand:
    """Holds the private servers of scenarios, and the sizes of the measurements."""

    def __init__(self, folder: Path, services: Collection[str] = (), patience: float = 0.0) -> None:
        """Create a stand. ``patience`` is the longest wait for an idle machine, in seconds."""
        self.folder = folder
        self.patience = patience
        self.sizes = Sizes()
        self.say: Say = lambda _: None
        self.postgres = PrivatePostgres(folder / "postgres")
        self.redis = PrivateRedis(folder / "redis")
        self.kafka = PrivateKafka(folder / "kafka", login=False)
        every = {"postgres": self.postgres, "redis": self.redis, "kafka": self.kafka}
        self.servers: dict[str, PrivateServer] = {name: every[name] for name in services}
        self._numbers = itertools.count(1)

    @property
    def pids(self) -> dict[str, int]:
        """Return the id of each server's main process, by the server's name."""
        return {_TITLES[name]: server.pid or 0 for name, server in self.servers.items()}

    def cpu(self, **parts: int) -> CpuTimes:
        """Start to measure the processor time of the servers and of the processes in ``parts``."""
        return CpuTimes(parts, families=self.pids)

    def prefix(self) -> str:
        """Return a unique prefix for names of topics, databases and files."""
        return f"bench-{time.time_ns()}-{next(self._numbers)}-"

    async def described(self) -> dict[str, Any]:
        """Return a description of the servers for environment.json."""
        found: dict[str, Any] = {}
        if "postgres" in self.servers:
            async with self.connection() as db:
                found["postgres"] = await db.fetchval("SHOW server_version")
                for name in _TOLD:
                    found[name] = await db.fetchval(f"SHOW {name}")
                found["round_trip_ms"] = await _median(lambda: db.fetchval("SELECT 1"))
                found["commit_ms"] = await _median(
                    lambda: db.execute("SELECT pg_logical_emit_message(true, 'bench', 'x')")
                )
        return found

    @contextlib.asynccontextmanager
    async def connection(self, database: str = "postgres") -> AsyncIterator[Any]:
        """Connect to a database of the private PostgreSQL until the block ends."""
        import asyncpg

        db = await asyncpg.connect(self.postgres.dsn(database))
        try:
            yield db
        finally:
            await db.close()

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Site]:
        """Create an empty database, and drop it at the end of the block."""
        name = self.prefix().strip("-")
        try:
            async with self.site(name) as site:
                yield site
        finally:
            async with self.connection() as db:
                await db.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @contextlib.asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[Site]:
        """Open the database ``name``, which is created if it does not exist."""
        async with self.connection() as db:
            if not await db.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
                await db.execute(f'CREATE DATABASE "{name}"')
        url = self.postgres.dsn(name)
        async with opened_store(url) as store:
            site = Site(self, name, url, store)
            async with site.engine():
                pass  # its start creates the queue
            await site.settle()
            yield site


@contextlib.asynccontextmanager
async def opened_store(url: str, observer: Observer | None = None) -> AsyncIterator[Store]:
    """Open a store in this process until the block ends."""
    store = create_store(url, observer=observer)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def online(known: Iterable[Worker]) -> int:
    """Return the number of workers that are ONLINE."""
    return sum(worker.status is WorkerStatus.ONLINE for worker in known)


async def caught_up(store: Store) -> None:
    """Wait until the event stream has every event of the store."""
    while (lag := await store.stream.lag()) is None or lag.events:  # noqa: ASYNC110 - others publish
        await asyncio.sleep(_POLL)


class Site:
    """Holds one database, and a store through which a measurement reads its progress.

    The measured programs therefore spend no time on these reads.
    """

    def __init__(self, stand: Stand, name: str, url: str, store: Store) -> None:
        self.stand = stand
        self.name = name
        self.url = url
        self.store = store

    async def settle(self) -> None:
        """Write earlier data to disk and wait for an idle machine, before a measurement."""
        async with self.stand.connection(self.name) as db:
            await db.execute("CHECKPOINT")
        await calm(self.stand.patience)

    @contextlib.asynccontextmanager
    async def engine(
        self, settings: EngineSettings | None = None, observer: Observer | None = None
    ) -> AsyncIterator[Engine]:
        """Start an engine on the database in this process."""
        locks = create_locks(self.stand.redis.url)
        store = create_store(self.url, observer=observer, locks=locks)
        engine = Engine(store, settings or EngineSettings(), observer=observer or Observer())
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def stats(self) -> QueueStats:
        """Return the statistics of the default queue."""
        return (await self.store.queues.stats(DEFAULT_QUEUE))[0]

    async def pause(self) -> None:
        """Pause the default queue, so that its jobs are not assigned."""
        await self.store.queues.pause(DEFAULT_QUEUE, True)

    async def until_done(self, jobs: int) -> None:
        """Wait until ``jobs`` jobs have succeeded since the database was created."""
        last, since = -1, time.monotonic()
        while (done := (await self.stats()).succeeded) < jobs:
            if done != last:
                last, since = done, time.monotonic()
            elif time.monotonic() > since + _STUCK:
                raise TimeoutError(
                    f"{done:,} of {jobs:,} jobs succeeded, then none for {_STUCK:g} s"
                )
            await asyncio.sleep(_POLL)

    async def drain_rate(self, jobs: int) -> float:
        """Resume the queue, and return the jobs per second until ``jobs`` more jobs are done."""
        before = (await self.stats()).succeeded
        began = time.perf_counter()
        await self.store.queues.pause(DEFAULT_QUEUE, False)
        await self.until_done(before + jobs)
        return jobs / (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def opened(services: Collection[str], patience: float = 0.0) -> AsyncIterator[Stand]:
    """Start the named servers, yield a stand, then stop the servers and remove their files."""
    supervised.check(tuple(map(BackingService, services)))
    with _folder() as folder:
        stand = Stand(folder, services, patience)
        try:
            for server in stand.servers.values():
                await asyncio.to_thread(server.start)
            yield stand
        finally:
            for server in stand.servers.values():
                await asyncio.to_thread(server.stop)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Create a temporary folder on a disk, because /tmp may be in memory."""
    with tempfile.TemporaryDirectory(prefix="jq-bench-", dir="/var/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)  # servers run as another user when we are root
        yield folder


async def _median(call: Callable[[], Awaitable[object]], times: int = 200) -> float:
    """Return the median duration of a call in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 3)
