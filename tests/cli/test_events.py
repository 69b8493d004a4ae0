"""jq-ctl events, and Kafka in jq-server's checks."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from confluent_kafka import Producer

from jobqueue.cli import server as program
from jobqueue.config import Settings
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.identity import Identity
from jobqueue.core.job import Event, JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.schedule import ScheduleSpec, Source, create, ran_by_hand
from jobqueue.core.stream import (
    Created,
    Failed,
    Finished,
    JobDeleted,
    JobEvent,
    ScheduleChange,
    ScheduleEvent,
)
from jobqueue.documents import job_event_document
from jobqueue.events.publisher import Message
from jobqueue.events.topics import Topics
from jobqueue.server import stream
from tests import patience
from tests.records import made
from tests.services.topics import Topics as OwnTopics

JOBS = [f"3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e1{n}" for n in range(3)]


def publish(kafka: OwnTopics, topic: str, *schedules: ScheduleEvent) -> None:
    """Publish a few records of jobs, or the given ones of schedules, to a topic."""
    from jobqueue.events.kafka import KafkaPublisher
    from jobqueue.events.settings import KafkaSettings

    messages_of = Topics(jobs=topic, queues=topic).of_store(Identity("s"))
    messages: list[Message] = []
    for n, job_id in enumerate(() if schedules else JOBS):
        event = Event(
            job_id, 1, None, State.PENDING, Reason.SUBMITTED, 1.7e9, 0, None, "", ("a", "b")[n % 2]
        )
        messages += messages_of(JobEvent(event))
    for item in schedules or (JobDeleted(JOBS[0], "a", 1, 1.7e9, False),):
        messages += messages_of(item)

    async def send() -> None:
        publisher = KafkaPublisher(
            KafkaSettings(
                bootstrap=kafka.bootstrap, topics=[topic], max_message_bytes=100_000, replication=1
            )
        )
        await publisher.open()
        await publisher.send(messages)
        await publisher.close()

    asyncio.run(send())


@pytest.mark.integration
@pytest.mark.req("jq:FR-036")
def test_tail_shows_the_stream(ctl, kafka: OwnTopics, monkeypatch: pytest.MonkeyPatch):
    topic = kafka.name("jobs")
    publish(kafka, topic)
    monkeypatch.setenv("JQ_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("JQ_KAFKA_TOPIC_JOBS", topic)
    tail = ("events", "tail", "--from-beginning", "--no-follow")
    answer = ctl("localhost:1", *tail, "--output", "json")
    assert answer.status == 0, answer.err
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert sorted(line["event_id"] for line in lines) == sorted(
        [*(f"{job}:1" for job in JOBS), f"{JOBS[0]}:deleted"]
    )
    first = next(line for line in lines if line["event_id"] == f"{JOBS[0]}:1")
    assert (first["queue"], first["from_status"], first["to_status"]) == ("a", None, "PENDING")
    queued = ctl("localhost:1", *tail, "--queue", "b")
    assert [JOBS[1] in line for line in queued.out.splitlines()] == [True]
    assert "- → PENDING" in queued.out
    one = ctl("localhost:1", *tail, "--job", JOBS[0])
    assert len(one.out.splitlines()) == 2
    assert "deleted" in one.out
    assert len(ctl("localhost:1", *tail, "--count", "2").out.splitlines()) == 2
    monkeypatch.setenv("JQ_KAFKA_TOPIC_JOBS", kafka.name("none"))
    nothing = ctl("localhost:1", *tail)
    assert nothing.status != 0
    assert "has no topic" in nothing.err


@pytest.mark.integration
def test_tail_shows_schedules(ctl, kafka: OwnTopics, monkeypatch: pytest.MonkeyPatch):
    topic = kafka.name("queues")
    spec = ScheduleSpec(name="nightly", job=JobSpec(payload=b'{"a": 1}'), cron="@daily")
    made = create(spec, Source.OPERATOR, 1.7e9, 0.0)
    ran = ran_by_hand(made, JOBS[0], 1.7e9 + 5)
    changes = ((ScheduleChange.CREATED, made), (ScheduleChange.TICKED, ran))
    publish(
        kafka,
        topic,
        *(ScheduleEvent.of(kind, one, n, 1.7e9) for n, (kind, one) in enumerate(changes, 1)),
    )
    monkeypatch.setenv("JQ_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("JQ_KAFKA_TOPIC_QUEUES", topic)
    tail = ("events", "tail", "--schedules", "--from-beginning", "--no-follow")
    answer = ctl("localhost:1", *tail, "--output", "json")
    created, ticked = (json.loads(line) for line in answer.out.splitlines())
    assert (created["event_id"], created["what"]) == ("schedule:nightly:1", "CREATED")
    assert created["schedule"]["job"]["payload"] == {"a": 1}
    assert (ticked["what"], ticked["last_job_id"]) == ("TICKED", JOBS[0])
    assert "schedule" not in ticked
    lines = ctl("localhost:1", *tail).out.splitlines()
    assert ["nightly  CREATED" in lines[0], f"{JOBS[0]}  next" in lines[1]] == [True, True]
    refused = ctl("localhost:1", *tail, "--queue", "a")
    assert (refused.status, "--schedules: cannot be given with" in refused.err) == (2, True)


@pytest.mark.integration
def test_tail_passes_over_what_is_no_record(
    ctl, kafka: OwnTopics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    topic = kafka.name("jobs")
    publish(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in (None, b"", b"\xff\xff", b"hello"):
        producer.produce(topic, value, JOBS[0].encode())
    assert producer.flush(patience.longest(30.0)) == 0
    monkeypatch.setenv("JQ_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("JQ_KAFKA_TOPIC_JOBS", topic)
    answer = ctl("localhost:1", "events", "tail", "--from-beginning", "--no-follow")
    assert answer.status == 0, answer.err
    assert len(answer.out.splitlines()) == len(JOBS) + 1
    assert caplog.text.count("skipping offset") == 4
    assert "a tombstone" in caplog.text


def test_json_has_all_that_the_stream_tells():
    created = made(
        Created,
        seq=7, type="mail", payload=b'{"to": 1}', priority=9, max_retries=3, created_at=1.0,
        ttl=2.0, timeout=3.0, run_at=4.0, expires_at=5.0, key="k", key_owner="me",
        key_expires_at=6.0, labels={"a": "b"},
    )  # fmt: skip
    event = Event(JOBS[0], 1, None, State.PENDING, Reason.SUBMITTED, 1.0, 0, None, "", "q")
    shown = job_event_document(JobEvent(event, created=created))["created"]
    assert shown == {
        "type": "mail",
        "payload": {"to": 1},
        "priority": 9,
        "max_retries": 3,
        "seq": 7,
        "created_at": "1970-01-01T00:00:01.000Z",
        "run_at": "1970-01-01T00:00:04.000Z",
        "expires_at": "1970-01-01T00:00:05.000Z",
        "ttl": 2.0,
        "timeout": 3.0,
        "idempotency_key": "k",
        "idempotency_key_owner": "me",
        "key_expires_at": "1970-01-01T00:00:06.000Z",
        "labels": {"a": "b"},
        "unique": None,
        "concurrency_key": None,
    }
    failed = job_event_document(JobEvent(event, failed=Failed(2, 1.0, None)))["failed"]
    assert failed == {
        "retry_count": 2,
        "started_at": "1970-01-01T00:00:01.000Z",
        "next_retry_at": None,
    }
    finished = job_event_document(JobEvent(event, finished=Finished(2, None, b"\xff", True)))
    assert finished["finished"] == {
        "retry_count": 2,
        "started_at": None,
        "cancel_requested": True,
        "result_base64": "/w==",
    }


def test_tail_to_the_end_does_not_wait_for_kafka_without_end(monkeypatch: pytest.MonkeyPatch):
    """It went away while the records were read."""
    from jobqueue.events import record as tail_module
    from jobqueue.events.settings import KafkaSettings

    monkeypatch.setattr(tail_module, "_SILENCE", 0.0)

    class Silent:
        def poll(self, timeout: float) -> None:
            return None

    settings = KafkaSettings(bootstrap="k:1", topics=["t"], max_message_bytes=100_000)
    tail = tail_module.Tail(settings, "t", beginning=True)
    tail._consumer.close()
    tail._consumer, tail._open = Silent(), {0}
    with pytest.raises(Unavailable, match=r"k:1: no record came for 0 s"):
        for _ in zip(tail.records(follow=False), range(1_000), strict=False):
            pass


def test_tail_has_to_know_where_kafka_is(ctl, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JQ_KAFKA_BOOTSTRAP", raising=False)
    answer = ctl("localhost:1", "events", "tail")
    assert answer.status == 2
    assert "--bootstrap" in answer.err
    answer = ctl("localhost:1", "events", "tail", "--bootstrap", "localhost:1", "--job", "x")
    assert answer.status == 2


@pytest.mark.integration
@pytest.mark.req("jq:FR-046")
def test_a_dry_run_looks_for_kafka(kafka: OwnTopics, capsys: pytest.CaptureFixture[str]):
    flags = ["--dry-run", "--db-url", "memory://", "--http-port", "0", "--grpc-port", "0"]
    topic = kafka.name("jobs")
    named = ["--set", f"kafka.topic_jobs={topic}", "--kafka-bootstrap", kafka.bootstrap]
    assert program.run([*flags, *named]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if "broker" in one)
    assert line.split()[:2] == ["kafka", "ok"]
    assert f"{topic}" in line
    assert kafka.names() == []  # nothing was made
    assert program.run([*flags, "--kafka-bootstrap", "127.0.0.1:1"]) == 1
    out = capsys.readouterr().out
    assert any(line.split()[:2] == ["kafka", "failing"] for line in out.splitlines() if line)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "confluent_kafka" or name in (
            "jobqueue.events.kafka",
            "jobqueue.events.settings",
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    settings = Settings.model_validate({"kafka": {"bootstrap": "localhost:9092"}})
    with pytest.raises(InvalidArgument, match=r"pip install 'jobqueue\[kafka\]'"):
        stream.kafka(settings)


def test_an_embedded_server_does_not_import_it():
    import subprocess

    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from jobqueue.config import Settings\n"
        "from jobqueue.server.process import ServerProcess\n"
        "ServerProcess(Settings.model_validate({'db': {'url': 'memory://'}}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience.longest(50))


def test_a_login_needs_a_name():
    settings = Settings.model_validate({"kafka": {"bootstrap": "x:1", "security": "sasl_ssl"}})
    with pytest.raises(InvalidArgument, match=r"kafka\.username"):
        stream.kafka(settings)
