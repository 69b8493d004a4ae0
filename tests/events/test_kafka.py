"""The stream in a real Kafka."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from jobqueue.config import Settings
from jobqueue.core.job import JobSpec, QueueSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.rebuild import World
from jobqueue.core.stream import JobEvent, StreamItem
from jobqueue.events.kafka import KafkaPublisher, KafkaSettings, make_topics
from jobqueue.events.publisher import Message
from jobqueue.events.tail import Tail
from jobqueue.events.topics import MESSAGE_MARGIN
from jobqueue.topology.embedded import Embedded
from tests.services.topics import Topics as OwnTopics

pytestmark = [pytest.mark.integration]
LIMIT = 1 << 20

Start = Callable[..., Awaitable[Embedded]]


def told(kafka: OwnTopics, *topics: str, **more) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=kafka.bootstrap,
        topics=[kafka.name(topic) for topic in topics],
        max_message_bytes=LIMIT + MESSAGE_MARGIN,
        replication=1,
        **more,
    )


def read(kafka: OwnTopics, topic: str) -> list[StreamItem]:
    """All that is in a topic, in the order of each partition."""
    with Tail(told(kafka), kafka.name(topic), beginning=True) as tail:
        return [item for item in tail.records(follow=False) if item is not None]


@pytest_asyncio.fixture
async def start(kafka: OwnTopics, tmp_path: Path) -> AsyncIterator[Start]:
    servers: list[Embedded] = []

    async def one(**sections: dict) -> Embedded:
        standard: dict[str, dict] = {
            "db": {"url": f"sqlite:///{tmp_path}/jobs.db"},
            "http": {"enabled": False},
            "grpc": {"enabled": False},
            "kafka": {
                "bootstrap": kafka.bootstrap,
                "topic_jobs": kafka.name("jobs"),
                "topic_dead_letters": kafka.name("dead"),
                "topic_queues": kafka.name("queues"),
                "replication": 1,
            },
        }
        server = Embedded(Settings.model_validate(standard | sections))
        servers.append(server)
        await server.start()
        return server

    yield one
    for server in servers:
        await server.stop()


async def caught_up(server: Embedded) -> None:
    async with asyncio.timeout(40.0):
        while True:
            health = await server.backend.health()
            (kafka,) = [part for part in health.components if part.name == "kafka"]
            if kafka.ok and "up to date" in kafka.detail:
                return
            await asyncio.sleep(0.05)


@pytest.mark.req("jq:FR-034", "jq:FR-036", "jq:FR-037")
async def test_what_a_server_does_can_be_rebuilt_from_kafka(kafka: OwnTopics, start: Start):
    server = await start()
    backend = server.backend
    await backend.create_queue(QueueSpec(name="mail", capacity=100))
    specs = [
        JobSpec(payload=b"%d" % n, type=("echo", "fail")[n % 5 == 0], max_retries=0, key=f"k{n}")
        for n in range(200)
    ]
    jobs = [result.unwrap() for result in await backend.submit(specs)]
    jobs += [(await backend.submit([JobSpec(payload=b"m", queue="mail")]))[0].unwrap()]
    for job_id in jobs[:-1]:
        assert (await backend.wait(job_id, 30.0)).state in (State.DONE, State.DEAD_LETTERED)
    await backend.pause_queue("mail")
    await caught_up(server)
    items = await asyncio.to_thread(read, kafka, "jobs")
    queues = await asyncio.to_thread(read, kafka, "queues")
    world = World()
    for item in [*queues, *items]:
        world.add(item)
    for job_id in jobs:
        assert world.jobs[job_id].job == await backend.get(job_id)
        assert world.jobs[job_id].history == await backend.history(job_id)
    assert world.queues == {one.queue.name: one.queue for one in await backend.list_queues()}
    dead = await asyncio.to_thread(read, kafka, "dead")
    ends = {item.event.job_id for item in dead if isinstance(item, JobEvent)}
    assert ends == {job_id for n, job_id in enumerate(jobs[:-1]) if n % 5 == 0}


@pytest.mark.req("jq:FR-036")
async def test_topics_keep_everything_and_take_the_largest_payload(kafka: OwnTopics, start: Start):
    server = await start(worker={"concurrency": 0})
    payload = bytes(range(256)) * (LIMIT // 256)
    (result,) = await server.backend.submit(
        [
            JobSpec(
                payload=payload, type="t" * 100, labels={f"label-{n}": "v" * 50 for n in range(9)}
            )
        ]
    )
    await caught_up(server)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for topic in ("jobs", "dead", "queues"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, kafka.name(topic))
        (answer,) = admin.describe_configs([resource]).values()
        found = await asyncio.to_thread(answer.result, 20.0)
        assert found["retention.ms"].value == "-1"
        assert found["retention.bytes"].value == "-1"
        assert found["max.message.bytes"].value == str(LIMIT + MESSAGE_MARGIN)
    (item,) = await asyncio.to_thread(read, kafka, "jobs")
    assert isinstance(item, JobEvent)
    assert item.created is not None
    assert (item.event.job_id, item.created.payload) == (result.unwrap(), payload)


async def test_a_message_that_is_too_large_is_refused_and_the_rest_is_not(kafka: OwnTopics):
    """By the client, and by a broker whose topic takes less than it should."""
    kafka.create("small", settings={"max.message.bytes": "2000"})
    settings = told(kafka, "small", "jobs")
    small, jobs = (kafka.name(topic) for topic in ("small", "jobs"))
    publisher = KafkaPublisher(settings)
    await publisher.open()
    try:
        messages = [
            Message(jobs, b"k", b"x", "1"),
            Message(jobs, b"k", b"x" * (2 * LIMIT), "too large for the client"),
            Message(jobs, b"k", b"x", "2"),
        ]
        async with asyncio.timeout(30.0):
            refused = await publisher.send(messages)
            assert [(one.topic, one.event_id) for one in refused] == [
                (jobs, "too large for the client")
            ]
            noise = random.Random(1).randbytes(50_000)
            refused = await publisher.send([Message(small, b"k", noise, "too large for it")])
            assert [(one.topic, one.event_id) for one in refused] == [(small, "too large for it")]
            assert await publisher.send([Message(small, b"k", b"x", "3")]) == []
    finally:
        await publisher.close()


async def test_topics_that_are_there_are_left_and_looked_at(
    kafka: OwnTopics, caplog: pytest.LogCaptureFixture
):
    kafka.create("jobs", settings={"retention.ms": "1000"})
    await asyncio.to_thread(make_topics, told(kafka, "jobs", "dead"))
    assert kafka.names() == sorted([kafka.name("dead"), kafka.name("jobs")])
    assert "retention.ms=1000, not -1" in caplog.text


@pytest.mark.slow
@pytest.mark.req("jq:FR-038")
async def test_jobs_go_on_while_kafka_is_down_and_their_events_catch_up(
    own_kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    broker = await asyncio.to_thread(own_kafka)
    kafka = OwnTopics(broker.bootstrap, "t-")
    server = Embedded(
        Settings.model_validate(
            {
                "db": {"url": f"sqlite:///{tmp_path}/jobs.db"},
                "http": {"enabled": False},
                "grpc": {"enabled": False},
                "kafka": {"bootstrap": broker.bootstrap, "topic_jobs": "t-jobs", "replication": 1},
            }
        )
    )
    await server.start()
    try:
        backend = server.backend
        (before,) = await backend.submit([JobSpec(payload=b"1", type="echo")])
        await backend.wait(before.unwrap(), 30.0)
        await caught_up(server)
        await asyncio.to_thread(broker.stop)
        results = await backend.submit([JobSpec(payload=b"2", type="echo")] * 50)
        for result in results:
            assert (await backend.wait(result.unwrap(), 30.0)).state is State.DONE
        async with asyncio.timeout(40.0):
            while (await backend.health()).status != "degraded":
                await asyncio.sleep(0.1)
        assert (await backend.health()).ok
        body, _ = await server.metrics.render()
        async with asyncio.timeout(40.0):
            while b'jq_kafka_publish_errors_total{topic="t-jobs"}' not in body:
                await asyncio.sleep(0.2)
                body, _ = await server.metrics.render()
        assert "stands still" in caplog.text
        await asyncio.to_thread(broker.start)
        await caught_up(server)
        items = await asyncio.to_thread(read, kafka, "jobs")
        world = World()
        for item in items:
            world.add(item)
        for result in [before, *results]:
            assert world.jobs[result.unwrap()].job == await backend.get(result.unwrap())
    finally:
        await server.stop()


@pytest.mark.req("jq:FR-036")
async def test_when_the_leader_goes_another_server_publishes(
    kafka: OwnTopics, start: Start, postgres_dsn: str
):
    """The stream goes on from the mark, under the next term."""
    shared = {
        "db": {"url": postgres_dsn},
        "worker": {"concurrency": 2},
        "scheduler": {"leader_ttl": 2.0},
    }
    one, two = await start(**shared), await start(**shared)
    jobs: list[str] = []

    async def run(server: Embedded) -> None:
        results = await server.backend.submit([JobSpec(payload=b"1", type="echo")] * 100)
        jobs.extend(result.unwrap() for result in results)
        for job_id in jobs[-100:]:
            assert (await server.backend.wait(job_id, 30.0)).state is State.DONE

    await run(one)
    await caught_up(two)
    details = [await _kafka_health(server) for server in (one, two)]
    leads = [not detail.endswith("another server publishes") for detail in details]
    assert sorted(leads) == [False, True]
    leader, other = (one, two) if leads[0] else (two, one)
    await run(other)
    await leader.stop()
    await run(other)
    await caught_up(other)
    assert not (await _kafka_health(other)).endswith("another server publishes")
    world = World()
    for item in await asyncio.to_thread(read, kafka, "jobs"):
        world.add(item)
    for job_id in jobs:
        assert world.jobs[job_id].job == await other.backend.get(job_id)


async def _kafka_health(server: Embedded) -> str:
    health = await server.backend.health()
    (part,) = [part for part in health.components if part.name == "kafka"]
    return part.detail
