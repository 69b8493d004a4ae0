"""The stream in a real Kafka."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from jobqueue.config import Settings
from jobqueue.core.job import Health, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec
from jobqueue.core.rebuild import World
from jobqueue.core.stream import DeadLetter, JobEvent, StreamItem
from jobqueue.core.texts import MAX_LABELS_BYTES
from jobqueue.events import kafka as events_kafka
from jobqueue.events.codec import decode
from jobqueue.events.kafka import KafkaPublisher, make_topics
from jobqueue.events.publisher import Message, PublishFailed
from jobqueue.events.record import Raw, Record, Tail
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import MESSAGE_MARGIN
from jobqueue.server.process import ServerProcess
from jobqueue.worker.settings import MAX_RESULT_BYTES
from tests import patience
from tests.journeys.pages import blocks
from tests.programs import Program
from tests.services.topics import Topics as OwnTopics

pytestmark = [pytest.mark.integration]
LIMIT = 1 << 20

Start = Callable[..., Awaitable[ServerProcess]]


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
    servers: list[ServerProcess] = []

    async def one(**sections: dict) -> ServerProcess:
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
        server = ServerProcess(Settings.model_validate(standard | sections))
        servers.append(server)
        await server.start()
        return server

    yield one
    for server in servers:
        await server.stop()


async def caught_up(server: ServerProcess) -> None:
    async with patience.timeout(40.0):
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
        assert (await backend.wait(job_id, patience.longest(30.0))).state in (
            State.DONE,
            State.DEAD_LETTERED,
        )
    await backend.pause_queue("mail")
    await caught_up(server)
    items = await asyncio.to_thread(read, kafka, "jobs")
    queues = await asyncio.to_thread(read, kafka, "queues")
    world = World()
    for item in [*queues, *items]:
        world.add(item)
    for job_id in jobs:
        told = replace(await backend.get(job_id), hint="")  # what waits now is no event
        assert world.jobs[job_id].job == told
        assert world.jobs[job_id].history == await backend.history(job_id)
    # How long jobs are kept is the server's own rule where a queue has none, and is shown with it.
    shown = [one.queue for one in await backend.list_queues()]
    assert world.queues == {
        queue.name: replace(queue, retention=None, dead_letter_retention=None) for queue in shown
    }
    dead = await asyncio.to_thread(read, kafka, "dead")
    letters = {item.event.job_id: item.letter for item in dead if isinstance(item, JobEvent)}
    assert letters == {
        job_id: DeadLetter("fail", b"%d" % n) for n, job_id in enumerate(jobs[:-1]) if n % 5 == 0
    }
    assert all(item.letter is None for item in items if isinstance(item, JobEvent))


@pytest.mark.req("jq:FR-036")
async def test_a_record_says_what_it_is_without_being_read(kafka: OwnTopics, start: Start):
    """By CloudEvents' headers; Kafka's timestamp is the time of the event."""
    server = await start()
    (accepted,) = await server.backend.submit([JobSpec(payload=b"1", type="echo")])
    await server.backend.wait(accepted.unwrap(), patience.longest(30.0))
    await caught_up(server)

    def raws() -> list[Raw]:
        topics = [kafka.name(one) for one in ("jobs", "queues")]
        with Record(told(kafka), topics) as record:
            return [raw for page in record.messages() for raw in page]

    found = await asyncio.to_thread(raws)
    assert len(found) >= 5
    (writer,) = {raw.writer for raw in found}
    assert writer is not None
    assert (len(writer.store), writer.generation) == (12, "1")
    for raw in found:
        item = decode(raw.value)
        at = item.event.at if isinstance(item, JobEvent) else item.at
        assert raw.at == int(at * 1000) / 1000


async def test_the_consumer_of_the_docs_reads_what_ended(
    kafka: OwnTopics, start: Start, tmp_path: Path
):
    server = await start()
    (accepted,) = await server.backend.submit([JobSpec(payload=b'"hello"', type="echo")])
    job_id = accepted.unwrap()
    await server.backend.wait(job_id, patience.longest(30.0))
    (text,) = blocks("docs/events.md", "python")
    (tmp_path / "consume.py").write_text(text.replace('"reports"', f'"{kafka.name("reports")}"'))
    command = [sys.executable, "consume.py", kafka.bootstrap, kafka.name("jobs")]
    program = Program(command, tmp_path, os.environ)
    try:
        line = await asyncio.to_thread(program.line_with, job_id)
    finally:
        await asyncio.to_thread(program.end)
    assert line.split() == [job_id, '"hello"']


@pytest.mark.req("jq:FR-036")
async def test_topics_keep_everything_and_take_the_largest_job(kafka: OwnTopics, start: Start):
    """Everything at its limit; noise, since what is small when compressed would pass anyway."""
    server = await start(worker={"concurrency": 0})
    name = "\N{TRIANGULAR FLAG ON POST}" * 15  # four bytes each
    labels = {f"{n:02}{name}": name * 15 for n in range(32)}
    spec = JobSpec(
        payload=random.Random(1).randbytes(LIMIT),
        type="\N{TRIANGULAR FLAG ON POST}" * 200,
        key="\N{TRIANGULAR FLAG ON POST}" * 255,
        labels=labels,
    )
    assert sum(len((k + v).encode()) for k, v in labels.items()) > MAX_LABELS_BYTES - 2_000
    job_id = (await server.backend.submit([spec]))[0].unwrap()
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
    assert (item.event.job_id, item.created.spec.payload) == (job_id, spec.payload)
    assert (item.created.spec.key, item.created.spec.labels) == (spec.key, labels)


@pytest.mark.req("jq:FR-036")
async def test_the_largest_result_passes_where_payloads_are_small(kafka: OwnTopics, start: Start):
    server = await start(queue={"max_payload_bytes": 1_000})
    asked = MAX_RESULT_BYTES - 100  # beside the output there is some JSON
    payload = b'{"payload_size_bytes": %d}' % asked
    job_id = (await server.backend.submit([JobSpec(payload=payload, type="simulate")]))[0].unwrap()
    job = await server.backend.wait(job_id, patience.longest(30.0))
    assert job.state is State.DONE
    await caught_up(server)
    last = (await asyncio.to_thread(read, kafka, "jobs"))[-1]
    assert isinstance(last, JobEvent)
    assert last.finished is not None
    assert last.finished.result == job.result
    assert asked < len(job.result or b"") <= MAX_RESULT_BYTES


@pytest.mark.req("jq:FR-036")
async def test_a_record_that_kafka_refuses_is_told_everywhere_and_the_rest_goes_on(
    kafka: OwnTopics, start: Start, caplog: pytest.LogCaptureFixture
):
    """Somebody made the topic, for smaller records than there are."""
    kafka.create("jobs", partitions=1, settings={"max.message.bytes": "20000"})
    server = await start()
    noise = random.Random(1).randbytes(50_000)
    specs = [JobSpec(payload=body, type="echo") for body in (b"before", noise, b"after")]
    jobs = [result.unwrap() for result in await server.backend.submit(specs)]
    for job_id in jobs:
        assert (await server.backend.wait(job_id, patience.longest(30.0))).state is State.DONE
    async with patience.timeout(40.0):
        while "up to date" not in await _kafka_health(server):
            await asyncio.sleep(0.05)
    # Its creation and its result are too large; what is between them is not.
    there = {item.event_id for item in await asyncio.to_thread(read, kafka, "jobs")}
    history = {
        f"{one}:{event.version}" for one in jobs for event in await server.backend.history(one)
    }
    last = max(event.version for event in await server.backend.history(jobs[1]))
    missing = {f"{jobs[1]}:1", f"{jobs[1]}:{last}"}
    assert there == history - missing
    health = await server.backend.health()
    assert (health.ok, health.status) == (True, "degraded")
    assert "2 records were refused and are missing from the stream" in _detail(health)
    alarms = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert {one.event_id for one in alarms} == missing  # type: ignore[attr-defined]
    body, _ = await server.metrics.render()
    name = kafka.name("jobs").encode()
    assert b'jq_kafka_publish_errors_total{topic="%s"} 2.0' % name in body
    assert b'jq_kafka_published_total{topic="%s"} %d.0' % (name, len(there)) in body


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
        async with patience.timeout(30.0):
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


async def test_records_that_were_refused_with_a_large_one_are_sent_again(
    kafka: OwnTopics, monkeypatch: pytest.MonkeyPatch
):
    """The limit of a topic may not be readable, or change: then only the broker knows it."""
    kafka.create("small", settings={"max.message.bytes": "20000"})
    monkeypatch.setattr(
        events_kafka, "make_topics", lambda settings: (settings.max_message_bytes, [])
    )
    small = kafka.name("small")
    noise = random.Random(1).randbytes(50_000)
    messages = [Message(small, b"k", body, body[:3].hex()) for body in (b"one", noise, b"two")]
    publisher = KafkaPublisher(told(kafka, "small"))
    try:
        async with patience.timeout(60.0):
            await publisher.open()
            with pytest.raises(PublishFailed, match="too large"):
                await publisher.send(messages)
            await publisher.close()
            await publisher.open()
            refused = await publisher.send(messages)
    finally:
        await publisher.close()
    assert [one.event_id for one in refused] == [noise[:3].hex()]


async def test_kafka_that_goes_away_while_topics_are_made_is_no_defect(
    monkeypatch: pytest.MonkeyPatch,
):
    def interrupted(settings: KafkaSettings) -> tuple[int, list[str]]:
        raise TimeoutError  # what the client's futures raise

    monkeypatch.setattr(events_kafka, "make_topics", interrupted)
    settings = KafkaSettings(bootstrap="127.0.0.1:1", topics=["jobs"], max_message_bytes=LIMIT)
    publisher = KafkaPublisher(settings)
    with pytest.raises(PublishFailed, match="no answer for 5 s"):
        await publisher.open()


async def test_a_record_whose_time_kafka_refuses_gets_the_time_of_its_publishing(
    kafka: OwnTopics, caplog: pytest.LogCaptureFixture
):
    """An operator's broker may bound how old a record's timestamp is."""
    kafka.create("jobs", settings={"message.timestamp.before.max.ms": "3600000"})
    jobs = kafka.name("jobs")
    began = time.time()
    old = [Message(jobs, b"k", b"old", "1", at=began - 7_200), Message(jobs, b"k", b"x", "2")]
    publisher = KafkaPublisher(told(kafka, "jobs"))
    try:
        async with patience.timeout(60.0):
            await publisher.open()
            with pytest.raises(PublishFailed):
                await publisher.send(old)
            await publisher.close()
            await publisher.open()
            assert await publisher.send(old) == []
    finally:
        await publisher.close()
    assert caplog.text.count("from now on the timestamp is the time of publishing") == 1

    def raws() -> list[Raw]:
        with Record(told(kafka), [jobs]) as record:
            return [raw for page in record.messages() for raw in page]

    (at,) = [raw.at for raw in await asyncio.to_thread(raws) if raw.value == b"old"]
    assert at >= int(began)


async def test_topics_that_are_there_are_left_and_looked_at(
    kafka: OwnTopics, caplog: pytest.LogCaptureFixture
):
    kafka.create("jobs", settings={"retention.ms": "1000"})
    await asyncio.to_thread(make_topics, told(kafka, "jobs", "dead"))
    assert kafka.names() == sorted([kafka.name("dead"), kafka.name("jobs")])
    assert "retention.ms=1000, not -1" in caplog.text


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

    async def run(server: ServerProcess) -> None:
        results = await server.backend.submit([JobSpec(payload=b"1", type="echo")] * 100)
        jobs.extend(result.unwrap() for result in results)
        for job_id in jobs[-100:]:
            assert (await server.backend.wait(job_id, patience.longest(30.0))).state is State.DONE

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


async def _kafka_health(server: ServerProcess) -> str:
    return _detail(await server.backend.health())


def _detail(health: Health) -> str:
    """Nothing, where the store did not answer in time: then the others are not asked."""
    return "".join(part.detail for part in health.components if part.name == "kafka")
