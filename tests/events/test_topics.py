"""Which record goes to which topic, and which hints go with it."""

from __future__ import annotations

import pytest

from jobqueue.config import load
from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.identity import Identity, Writer
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.observer import Observer
from jobqueue.core.queue import Queue
from jobqueue.core.rebuild import World
from jobqueue.core.stream import (
    AssignmentRepeated,
    CancelRequested,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    RecordItem,
    Route,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.events.codec import UnknownRecord, writer_of
from jobqueue.events.publisher import Message
from jobqueue.events.topics import DispatchTopics, Topics, decode_hint, encode_hint
from jobqueue.server import stream

LARGEST = 2**63 - 1
STORE = Identity("s1", "2-ab")
CAME = WorkerEvent(WorkerChange.REGISTERED, "w", LARGEST, 12.5)
AGAIN = AssignmentRepeated("job", "q", 1, 2, "w", Route(3, LARGEST), 12.5)
TOPICS = Topics(dispatch=DispatchTopics())


def moved(before: State | None, after: State, route: Route | None = None) -> JobEvent:
    reason = Reason.SUBMITTED  # no hint depends on it
    return JobEvent(Event("job", 4, before, after, reason, 12.5, 2, "w", "", "q"), route=route)


def hints(messages: list[Message]) -> list[tuple[str, bytes, int, str, Hint]]:
    """Those that are no record: topic, key, partition, header, and what it says."""
    found = []
    for message in messages:
        name, value = (message.headers or [])[0]
        if name == "event":
            hint = decode_hint(message.value)
            assert hint.event_id == message.event_id
            found.append((message.topic, message.key, message.partition, value.decode(), hint))
    return found


def test_nothing_is_rebuilt_from_hints_and_without_a_dispatch_none_is_published():
    world = World()
    for item in (CAME, AGAIN):
        assert not world.add(item)
        assert Topics().of_store(STORE)(item) == []
    assert world == World()


@pytest.mark.req("sch:TOPICS")
@pytest.mark.parametrize(
    ("item", "topic", "event"),
    [
        (moved(None, State.PENDING), "job-requests", "JobCreated"),
        (moved(State.FAILED, State.PENDING), "job-requests", "JobRequeued"),
        (moved(State.ASSIGNED, State.RUNNING), "job-results", "JobStarted"),
        (moved(State.RUNNING, State.DONE), "job-results", "JobCompleted"),
        (moved(State.RUNNING, State.FAILED), "job-results", "JobFailed"),
        (moved(State.FAILED, State.DEAD_LETTERED), "job-results", "JobFailed"),
        (CAME, "worker-events", "WorkerRegistered"),
        (WorkerEvent(WorkerChange.DEAD, "w", 1, 2.0), "worker-events", "WorkerDead"),
    ],
)
def test_each_event_has_its_topic_and_its_name(
    item: JobEvent | WorkerEvent, topic: str, event: str
):
    ((found, key, partition, name, hint),) = hints(TOPICS.of_store(STORE)(item))
    job = isinstance(item, JobEvent)
    assert (found, key, partition, name) == (topic, b"job" if job else b"w", -1, event)
    assert hint.kind is HintKind(event)
    assert (hint.job_id, hint.worker_id) == ("job" if job else "", "w")
    final = isinstance(item, JobEvent) and item.event.to_state is State.DEAD_LETTERED
    assert hint.final is final


@pytest.mark.req("sch:TOPICS")
def test_an_assignment_goes_to_the_partition_of_its_worker():
    assigned = moved(State.PENDING, State.ASSIGNED, Route(3, LARGEST))
    for item in (assigned, AGAIN):
        ((topic, key, partition, event, hint),) = hints(TOPICS.of_store(STORE)(item))
        assert (topic, key, partition, event) == ("job-assignments", b"w", 3, "JobAssigned")
        assert (hint.job_id, hint.attempt) == ("job", 2)
        assert (hint.worker_id, hint.incarnation) == ("w", LARGEST)
    # One whose worker is connected to a server is told there.
    assert hints(TOPICS.of_store(STORE)(moved(State.PENDING, State.ASSIGNED))) == []


def test_the_record_is_the_same_with_and_without_hints():
    item = moved(None, State.PENDING)
    record = Topics().of_store(STORE)(item)
    assert TOPICS.of_store(STORE)(item)[: len(record)] == record


@pytest.mark.parametrize(
    ("item", "event"),
    [
        (moved(None, State.PENDING), "JobCreated"),
        (moved(State.FAILED, State.PENDING), "JobRequeued"),
        (moved(State.PENDING, State.ASSIGNED), "JobAssigned"),
        (moved(State.ASSIGNED, State.RUNNING), "JobStarted"),
        (moved(State.RUNNING, State.DONE), "JobCompleted"),
        (moved(State.RUNNING, State.FAILED), "JobFailed"),
        (moved(State.FAILED, State.DEAD_LETTERED), "JobDeadLettered"),
        (CancelRequested("job", "q", 3, 2.0), "JobCancelRequested"),
        (JobDeleted("job", "q", 3, 2.0, False), "JobDeleted"),
        (QueueEvent(QueueChange.CREATED, Queue(name="q"), 1, 2.0), "QueueCreated"),
        (QueueEvent(QueueChange.CHANGED, Queue(name="q"), 2, 2.0), "QueueChanged"),
        (QueueEvent(QueueChange.DELETED, Queue(name="q"), 3, 2.0), "QueueDeleted"),
    ],
)
def test_every_record_has_the_headers_of_cloudevents(item: RecordItem, event: str):
    at = item.event.at if isinstance(item, JobEvent) else item.at
    for message in Topics().of_store(STORE)(item):
        assert dict(message.headers or ()) == {
            "ce_specversion": b"1.0",
            "ce_id": item.event_id.encode(),
            "ce_source": b"urn:jobqueue:s1",
            "ce_generation": b"2-ab",
            "ce_type": f"jobqueue.{event}".encode(),
            "ce_time": f"1970-01-01T00:00:{at:09.6f}Z".encode(),
            "content-type": b"application/protobuf",
        }
        assert message.at == at
        assert writer_of(message.headers) == Writer("s1", "2-ab")


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("event", b"JobCreated")],
        [("ce_source", b"/elsewhere"), ("ce_generation", b"1")],
        [("ce_source", None), ("ce_generation", None)],
        [("ce_source", b"urn:jobqueue:s1")],
    ],
)
def test_headers_of_others_name_no_store(headers):
    assert writer_of(headers) is None


def test_what_is_no_hint_is_told_apart():
    hint = Hint(HintKind.JOB_FAILED, "id", 0.1, "job", "q", 3, "w", LARGEST, True)
    assert decode_hint(encode_hint(hint)) == hint
    for data in (b"\xff\xff", b""):
        with pytest.raises(UnknownRecord):
            decode_hint(data)


@pytest.mark.parametrize(
    ("flags", "field", "words"),
    [
        ({"kafka.dispatch": "true", "kafka.bootstrap": "k:1"}, "kafka.dispatch", "db.url must be"),
        ({"kafka.dispatch": "true", "db.url": "redis://r:1"}, "kafka.dispatch", "kafka.bootstrap"),
        (
            {
                "kafka.dispatch": "true",
                "db.url": "redis://r:1",
                "kafka.bootstrap": "k:1",
                "kafka.topic_results": "job-requests",
            },
            "kafka.dispatch",
            "'job-requests'",
        ),
        ({"server.role": "api"}, "server.role", "kafka.dispatch"),
        ({"server.role": "scheduler"}, "server.role", "kafka.dispatch"),
    ],
)
def test_a_dispatch_that_lacks_something_is_refused(flags: dict[str, str], field: str, words: str):
    settings = load(flags=flags).settings
    with pytest.raises(InvalidArgument) as refused:
        stream.check_dispatch(settings, settings.db.url, "db.url")
    assert refused.value.field == field
    assert words in refused.value.message


LOGIN = {"kafka.security": "sasl_ssl", "kafka.username": "u"}


@pytest.mark.parametrize(
    ("flags", "field", "words"),
    [
        ({"kafka.bootstrap": "k:port"}, "kafka.bootstrap", "'k:port' is not HOST:PORT"),
        ({"kafka.bootstrap": "k:1,k:65536"}, "kafka.bootstrap", "'k:65536' is not HOST:PORT"),
        ({"kafka.bootstrap": "k:1,,k:2"}, "kafka.bootstrap", "'' is not HOST:PORT"),
        ({"kafka.bootstrap": "k:1", **LOGIN}, "kafka.password", "is needed with kafka.security"),
        ({"kafka.bootstrap": "k:1", "kafka.tls_ca": "/none"}, "kafka.tls_ca", "/none: No such"),
        ({"kafka.bootstrap": "k:1", "kafka.tls_ca": __file__}, "kafka.tls_ca", "not a PEM file"),
        ({"kafka.bootstrap": "k:1", "kafka.abandon": "true"}, "kafka.abandon", "kafka.bootstrap"),
    ],
)
def test_settings_of_kafka_that_cannot_be_are_named(flags: dict[str, str], field: str, words: str):
    settings = load(flags=flags).settings
    with pytest.raises(InvalidArgument) as refused:
        stream.runner(settings, Observer())
    assert refused.value.field == field
    assert words in refused.value.message


@pytest.mark.parametrize("address", ["k", "k:1", "k.x-1:9092, l:2", "127.0.0.1:1,[::1]:2"])
def test_addresses_of_kafka(address: str):
    settings = load(flags={"kafka.bootstrap": address}).settings
    assert stream.kafka(settings).bootstrap == address


def test_the_profile_of_the_streaming_topology():
    settings = load(flags={"profile": "streaming"}).settings
    assert settings.kafka.dispatch
    assert (settings.http.view, settings.queue.retry_profile) == ("scheduler", "scheduler")
    assert (settings.worker.heartbeat_interval, settings.worker.heartbeat_timeout) == (5.0, 30.0)
