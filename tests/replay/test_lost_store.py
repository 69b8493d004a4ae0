"""A store that is lost under its servers: its record is not damaged, and can be rebuilt from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import redis

from jobqueue.config import Settings
from jobqueue.connect.backends import create_store
from jobqueue.core.job import ComponentHealth, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec
from jobqueue.core.rebuild import gather
from jobqueue.events.replay import Replay
from jobqueue.server.process import ServerProcess
from tests import patience
from tests.replay.stream import Stream
from tests.services.topics import Topics as OwnTopics

pytestmark = [pytest.mark.integration, pytest.mark.req("sch:REPLAY")]
Start = Callable[[str], Awaitable[ServerProcess]]


@pytest.fixture
def stream(kafka: OwnTopics) -> Stream:
    return Stream(kafka)


@pytest_asyncio.fixture
async def start(stream: Stream) -> AsyncIterator[Start]:
    servers: list[ServerProcess] = []

    async def one(url: str) -> ServerProcess:
        settings = {
            "db": {"url": url},
            "http": {"enabled": False},
            "grpc": {"enabled": False},
            "scheduler": {"leader_ttl": 2.0},
            "worker": {"concurrency": 2, "heartbeat_interval": 0.5},
            "kafka": {
                "bootstrap": stream.settings.bootstrap,
                "topic_jobs": stream.topics.jobs,
                "topic_dead_letters": stream.topics.dead_letters,
                "topic_queues": stream.topics.queues,
                "partitions": 3,
                "replication": 1,
            },
        }
        server = ServerProcess(Settings.model_validate(settings))
        servers.append(server)
        await server.start()
        return server

    yield one
    for server in servers:
        await server.stop()


async def work(server: ServerProcess, count: int) -> list[str]:
    """Jobs that were accepted and are done."""
    specs = [JobSpec(payload=b"%d" % n, type="echo") for n in range(count)]
    jobs = [result.unwrap() for result in await server.backend.submit(specs)]
    for job_id in jobs:
        assert (await server.backend.wait(job_id, patience.longest(30.0))).state is State.DONE
    return jobs


async def kafka_says(server: ServerProcess, *words: str) -> ComponentHealth:
    """Its health, once it has all these words."""
    async with patience.timeout(60.0):
        while True:
            health = await server.backend.health()
            (kafka,) = [part for part in health.components if part.name == "kafka"]
            if all(word in kafka.detail for word in words):
                return kafka
            await asyncio.sleep(0.05)


async def read(stream: Stream) -> Replay:
    found = await asyncio.to_thread(stream.read)
    found.check()
    return found


class Lost:
    """A store that can be lost, and a place for another."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self._kind = kind
        if kind == "redis":
            self.url = self.empty = request.getfixturevalue("redis_url")
        else:
            self.url, self.empty = f"sqlite:///{folder}/jobs.db", f"sqlite:///{folder}/new.db"
        self._folder = folder

    async def lose(self, server: ServerProcess, start: Start) -> ServerProcess:
        """Redis is emptied while its server works; a file is gone when it is started again."""
        if self._kind == "redis":
            self.flush()
            await server.backend.create_queue(QueueSpec(name="default"))  # an app declares it
            return server
        await server.stop()
        for path in self._folder.glob("jobs.db*"):
            path.unlink()
        return await start(self.url)

    def flush(self) -> None:
        """Make room for a replay into the same place."""
        if self._kind == "redis":
            with redis.Redis.from_url(self.url) as client:
                client.flushdb()


@pytest.fixture(params=["redis", "sqlite"])
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> Lost:
    return Lost(request.param, request, tmp_path)


async def test_a_store_that_begins_anew_does_not_write_into_the_record_of_the_lost_one(
    lost: Lost, stream: Stream, start: Start
):
    server = await start(lost.url)
    before = await work(server, 5)
    await kafka_says(server, "up to date")
    record = await read(stream)
    server = await lost.lose(server, start)
    later = await work(server, 3)  # jobs go on
    said = await kafka_says(server, "the records of store", "jq-ctl replay")
    assert not said.ok
    assert (await server.backend.health()).status == "degraded"
    await server.stop()
    found = await read(stream)
    assert found.records == record.records  # not one was added
    assert set(found.world.jobs) == set(before)

    lost.flush()
    store = create_store(lost.empty)
    await store.open()
    await store.restore(gather(found.world, published=True, identity=found.identity()), print)
    await store.close()
    server = await start(lost.empty)
    more = await work(server, 2)
    await kafka_says(server, "up to date")
    for job_id in before:
        assert (await server.backend.get(job_id)).result is not None
    await server.stop()
    found = await read(stream)
    assert set(found.world.jobs) == {*before, *more}
    assert not set(later) & set(found.world.jobs)
