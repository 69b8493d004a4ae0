"""What the measurements stand on: a private PostgreSQL on a disk and a Redis, nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import redis

from jobqueue.bench.machine import CpuTimes, calm, fsync_milliseconds
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.queue import QueueStats
from jobqueue.core.store import Store
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.topology.backing import PrivatePostgres, PrivateRedis
from jobqueue.topology.connect import create_locks, create_store

POLL = 0.1  # each look sums a short table, and must not weigh on what it measures
_STUCK = 120.0  # seconds without one job that ended
_TOLD = {"fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "max_connections"}


class Ground:
    """The servers, and databases on them."""

    def __init__(self, postgres: PrivatePostgres, cache: PrivateRedis, patience: float) -> None:
        self._postgres = postgres
        self.redis_url = cache.url
        self._redis_pid = cache.pid
        self.patience = patience
        self._numbers = itertools.count(1)

    async def conditions(self) -> str:
        """The machine and the servers, in a line."""
        async with self.connection() as db:
            version = await db.fetchval("SHOW server_version")
            settings = [f"{name} {await db.fetchval(f'SHOW {name}')}" for name in sorted(_TOLD)]
            trip = await _median(lambda: db.fetchval("SELECT 1"))
            commit = await _median(
                lambda: db.execute("SELECT pg_logical_emit_message(true, 'bench', 'x')")
            )
        with redis.Redis.from_url(self.redis_url) as cache:
            cache_version = cache.info("server")["redis_version"]
        return (
            f"Python {platform.python_version()}, PostgreSQL {version} ({', '.join(settings)}), "
            f"Redis {cache_version}, {os.cpu_count()} cores shared by all of it, "
            f"fdatasync {fsync_milliseconds(self._postgres.folder):.2f} ms, "
            f"round trip {trip:.2f} ms, commit {commit:.2f} ms (medians), "
            f"load average before {os.getloadavg()[0]:.1f}"
        )

    def cpu(self, **parts: int) -> CpuTimes:
        """From now on: whose processor time it was."""
        services = {"PostgreSQL": self._postgres.pid or 0, "Redis": self._redis_pid or 0}
        return CpuTimes(parts, families=services)

    def environment(self, **settings: object) -> dict[str, str]:
        """What programs on this ground are told, with settings such as scheduler_batch_size=1."""
        told = {f"JQ_{name.upper()}": str(value) for name, value in settings.items()}
        return {"JQ_REDIS_URL": self.redis_url, **told}

    @contextlib.asynccontextmanager
    async def connection(self, database: str = "postgres") -> AsyncIterator[Any]:
        db = await asyncpg.connect(self._postgres.dsn(database))
        try:
            yield db
        finally:
            await db.close()

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Site]:
        """An empty one; gone afterwards."""
        name = f"bench_{os.getpid()}_{next(self._numbers)}"
        async with self.site(name) as site:
            try:
                yield site
            finally:
                site.drop_afterwards = True

    @contextlib.asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[Site]:
        """A database by its name, made if it is not there."""
        async with self.connection() as db:
            if not await db.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
                await db.execute(f'CREATE DATABASE "{name}"')
        url = self._postgres.dsn(name)
        site = Site(self, name, url, create_store(url))
        await site.store.open()
        try:
            await site.prepare()
            yield site
        finally:
            await site.store.close()
            if site.drop_afterwards:
                async with self.connection() as db:
                    await db.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class Site:
    """One database. It is watched from here, so that nothing measured answers for it."""

    def __init__(self, ground: Ground, name: str, url: str, store: Store) -> None:
        self.ground = ground
        self.name = name
        self.url = url
        self.store = store
        self.drop_afterwards = False

    async def prepare(self) -> None:
        """The queue is there, and the time before is written out."""
        async with self.engine():
            pass
        await self.settle()

    async def settle(self) -> None:
        """What earlier measurements left in memory, or others do now, is not this one's to pay."""
        async with self.ground.connection(self.name) as db:
            await db.execute("CHECKPOINT")
        await calm(self.ground.patience)

    @contextlib.asynccontextmanager
    async def engine(
        self, settings: EngineSettings | None = None, observer: Observer | None = None
    ) -> AsyncIterator[Engine]:
        """An engine in this process."""
        locks = create_locks(self.ground.redis_url)
        store = create_store(self.url, observer=observer, locks=locks)
        engine = Engine(store, settings or EngineSettings(), observer=observer or Deaf())
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def stats(self) -> QueueStats:
        return (await self.store.stats(DEFAULT_QUEUE))[0]

    async def pause(self) -> None:
        await self.store.pause_queue(DEFAULT_QUEUE, True)

    async def resume(self) -> None:
        await self.store.pause_queue(DEFAULT_QUEUE, False)

    async def until_done(self, jobs: int) -> None:
        """Wait until so many jobs have succeeded, ever."""
        last, since = -1, time.monotonic()
        while (done := (await self.stats()).succeeded) < jobs:
            if done != last:
                last, since = done, time.monotonic()
            elif time.monotonic() > since + _STUCK:
                raise TimeoutError(f"{done:,} of {jobs:,} jobs were done, then nothing happened")
            await asyncio.sleep(POLL)

    async def drain_rate(self, jobs: int) -> float:
        """Let go of what waits in the paused queue; jobs per second until so many are done."""
        before = (await self.stats()).succeeded
        began = time.perf_counter()
        await self.resume()
        await self.until_done(before + jobs)
        return jobs / (time.perf_counter() - began)


@contextlib.contextmanager
def ground(folder: Path, patience: float = 0.0) -> Iterator[Ground]:
    """Start both servers in a folder, which has to be on a disk; stop them afterwards.

    ``patience``: seconds to wait at most, before a measurement, for an idle machine.
    """
    postgres, cache = PrivatePostgres(folder / "postgres"), PrivateRedis(folder / "redis")
    try:
        postgres.start()
        cache.start()
        yield Ground(postgres, cache, patience)
    finally:
        cache.stop()
        postgres.stop("immediate")


@contextlib.contextmanager
def scratch(kept: Path | None = None) -> Iterator[Path]:
    """Where PostgreSQL's files are. What outlives a restart is on a disk; /tmp may not be."""
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)  # it runs as another user when we are root
        yield Path(made)


async def _median(call: Callable[[], Awaitable[object]], times: int = 200) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3
