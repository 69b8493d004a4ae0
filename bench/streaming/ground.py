"""The replicated topology's ground, and a Kafka on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.replicated import ground as replicated
from bench.replicated.ground import Site
from bench.streaming.stage import Stage
from jobqueue.bench.machine import CpuTimes
from jobqueue.topology.backing import PrivateKafka, PrivateRedis
from jobqueue.topology.backing.kafka import VERSION

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Ground:
    """PostgreSQL and Redis, and a Kafka that may be stopped."""

    servers: replicated.Ground
    kafka: PrivateKafka
    folder: Path

    async def conditions(self) -> str:
        """In a line."""
        return f"{await self.servers.conditions()}, Kafka {VERSION} (one node) on the same cores"

    def prefix(self) -> str:
        """For topics that nobody has."""
        return f"bench-{time.time_ns()}-{next(_numbers)}-"

    def cpu(self, **parts: int) -> CpuTimes:
        """From now on: whose processor time it was."""
        return self.servers.cpu(**parts, Kafka=self.kafka.pid or 0)

    @contextlib.asynccontextmanager
    async def stage(self, concurrency: int) -> AsyncIterator[Stage]:
        """A new database and new topics."""
        async with self.servers.database() as site:
            yield self.stage_on(site, concurrency)

    def stage_on(self, site: Site, concurrency: int) -> Stage:
        """New topics for a database that is there."""
        return Stage(site.url, self.kafka.bootstrap, self.prefix(), self.folder, concurrency)


@contextlib.contextmanager
def ground(folder: Path, patience: float) -> Iterator[Ground]:
    """Start all three in a folder, which has to be on a disk; stop them afterwards."""
    kafka = PrivateKafka(folder / "kafka", login=False)
    with replicated.ground(folder, patience) as servers:
        try:
            kafka.start()
            yield Ground(servers, kafka, folder)
        finally:
            kafka.stop()


@contextlib.asynccontextmanager
async def durable_redis(folder: Path) -> AsyncIterator[PrivateRedis]:
    """One that has written down what it answers."""
    settings = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    redis = PrivateRedis(folder, settings=settings)
    await asyncio.to_thread(redis.start)
    try:
        yield redis
    finally:
        await asyncio.to_thread(redis.stop)
