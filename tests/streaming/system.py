"""An API, schedulers and workers in one process, each with a store and clients of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from jobqueue.config import Settings, load
from jobqueue.core.api import Backend
from jobqueue.core.dispatch import Hint
from jobqueue.core.lifecycle import TERMINAL
from jobqueue.events.topics import decode_hint
from jobqueue.server.process import ServerProcess
from jobqueue.server.worker import WorkerProcess
from jobqueue.worker.registry import Registry
from tests import patience
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
        "worker.heartbeat_timeout": f"{patience.stretched(3):.1f}",
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
        self.workers: list[WorkerProcess] = []
        self._running: list[ServerProcess | WorkerProcess] = []

    def settings(self, **more: str) -> Settings:
        return load(flags=flags(self.redis_url, self.kafka, **more)).settings

    async def server(self, role: str, **more: str) -> ServerProcess:
        server = ServerProcess(self.settings(**{"server.role": role, **more}))
        self._running.append(server)
        await server.start()
        return server

    async def worker(
        self,
        worker_id: str = "w",
        *,
        registry: Registry | None = None,
        more: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        worker = WorkerProcess(
            self.settings(**{"worker.id": worker_id, **(more or {})}),
            self.redis_url,
            queues=["default"],
            registry=registry,
        )
        self._running.append(worker)
        self.workers.append(worker)
        await worker.start()
        return worker

    async def all(self, **more: str) -> ServerProcess:
        """An API, two schedulers, a worker; returns the API."""
        api = await self.server("api", **more)
        for _ in range(2):
            await self.server("scheduler", **more)
        await self.worker(more=more)
        return api

    async def stop(self) -> None:
        for one in reversed(self._running):
            await one.stop()


def client(api: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=api.http_url, trust_env=False, timeout=patience.longest(PATIENCE)
    )


async def until(
    condition: Callable[[], Awaitable[Any]], what: str, within: float = PATIENCE
) -> Any:
    """What it says, once that is something."""
    limit = patience.Limit(within)
    while not (found := await condition()):
        assert not limit.over, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.02)
    return found


async def ended(backend: Backend, *job_ids: str, within: float = PATIENCE) -> list[Any]:
    """The jobs, once all of them are over."""

    async def one(job_id: str) -> Any:
        job = await backend.wait(job_id, patience.longest(within))
        assert job.state in TERMINAL, f"{job_id} is {job.state.name} after {within:g} s"
        return job

    return list(await asyncio.gather(*map(one, job_ids)))


class Spoken:
    """A message of a dispatch topic, as it is there."""

    def __init__(self, message: Any) -> None:
        self.topic: str = message.topic()
        self.partition: int = message.partition()
        self.key: bytes = message.key()
        self.value: bytes = message.value()
        self.headers: list[tuple[str, str | bytes | None]] = message.headers() or []

    @property
    def event(self) -> str:
        name = dict(self.headers)["event"]
        assert isinstance(name, bytes)
        return name.decode()

    @property
    def hint(self) -> Hint:
        return decode_hint(self.value)


def spoken(kafka: Topics, *topics: str) -> list[Spoken]:
    """Everything in these topics so far. Blocking."""
    told = {"bootstrap.servers": kafka.bootstrap, "group.id": kafka.name("reader")}
    consumer = Consumer({**told, "fetch.wait.max.ms": 10})
    try:
        places, left = [], 0
        for topic in map(kafka.name, topics):
            for number in (
                consumer.list_topics(topic, timeout=patience.longest(PATIENCE))
                .topics[topic]
                .partitions
            ):
                places.append(TopicPartition(topic, number, OFFSET_BEGINNING))
                left += _end_of(consumer, places[-1])
        consumer.assign(places)
        found: list[Spoken] = []
        while len(found) < left:
            message = consumer.poll(patience.longest(PATIENCE))
            assert message is not None
            assert message.error() is None, message.error()
            found.append(Spoken(message))
        return found
    finally:
        consumer.close()


def _end_of(consumer: Consumer, place: TopicPartition) -> int:
    """A topic that was just made has no leader for a moment."""
    limit = patience.Limit(PATIENCE)
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=patience.longest(PATIENCE))[1])
        except KafkaException:
            if limit.over:
                raise
            time.sleep(0.05)


def say_again(kafka: Topics, messages: Sequence[Spoken]) -> None:
    """As a producer does that did not hear of its success. Blocking."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for one in messages:
        producer.produce(
            one.topic, one.value, one.key, partition=one.partition, headers=one.headers
        )
    assert producer.flush(patience.longest(PATIENCE)) == 0
