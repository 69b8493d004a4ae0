"""An API, schedulers and workers in one process, each with a store and clients of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from jobqueue.config import Settings, load
from jobqueue.core.api import Backend
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.topology.embedded import Embedded
from jobqueue.topology.remote_worker import RemoteWorker
from jobqueue.worker.registry import Registry
from tests.services.topics import Topics

PATIENCE = 30.0
TTL = 1.5
TOPICS = ("jobs", "dead_letters", "queues", "requests", "assignments", "results", "workers")


def flags(redis_url: str, kafka: Topics, **more: str) -> dict[str, str]:
    """Settings of every part, with times short enough for a test."""
    return {
        "profile": "streaming",
        "db.url": redis_url,
        "worker.server": redis_url,
        "kafka.bootstrap": kafka.bootstrap,
        "kafka.replication": "1",
        "kafka.partitions": "2",
        "kafka.assignment_partitions": "4",
        **{f"kafka.topic_{name}": kafka.name(name) for name in TOPICS},
        "scheduler.leader_ttl": str(TTL),
        "http.port": "0",
        "grpc.port": "0",
        "worker.heartbeat_interval": "0.5",
        "worker.heartbeat_timeout": "3",
        "worker.metrics_port": "0",
        "worker.shutdown_timeout": "5",
        "server.shutdown_timeout": "5",
        **more,
    }


class System:
    """What runs is stopped in reverse."""

    def __init__(self, redis_url: str, kafka: Topics) -> None:
        self.redis_url = redis_url
        self.kafka = kafka
        self._running: list[Embedded | RemoteWorker] = []

    def settings(self, **more: str) -> Settings:
        return load(flags=flags(self.redis_url, self.kafka, **more)).settings

    async def server(self, role: str, **more: str) -> Embedded:
        server = Embedded(self.settings(**{"server.role": role, **more}))
        self._running.append(server)
        await server.start()
        return server

    async def worker(
        self,
        worker_id: str = "w",
        *,
        registry: Registry | None = None,
        more: Mapping[str, str] | None = None,
    ) -> RemoteWorker:
        worker = RemoteWorker(
            self.settings(**{"worker.id": worker_id, **(more or {})}),
            self.redis_url,
            queues=["default"],
            registry=registry,
        )
        self._running.append(worker)
        await worker.start()
        return worker

    async def all(self, **more: str) -> Embedded:
        """An API, two schedulers, a worker; returns the API."""
        api = await self.server("api", **more)
        for _ in range(2):
            await self.server("scheduler", **more)
        await self.worker(more=more)
        return api

    async def stop(self) -> None:
        for one in reversed(self._running):
            await one.stop()


def client(api: Embedded) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=api.http_url, trust_env=False, timeout=PATIENCE)


async def until(
    condition: Callable[[], Awaitable[Any]], what: str, within: float = PATIENCE
) -> Any:
    """What it says, once that is something."""
    deadline = time.monotonic() + within
    while not (found := await condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.02)
    return found


async def ended(backend: Backend, *job_ids: str, within: float = PATIENCE) -> list[Any]:
    """The jobs, once all of them are over."""

    async def one(job_id: str) -> Any:
        job = await backend.wait(job_id, within)
        assert job.state in TERMINAL, f"{job_id} is {job.state.name} after {within:g} s"
        return job

    return list(await asyncio.gather(*map(one, job_ids)))
