"""Records as bytes: nothing is lost on the way, to the last bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.core.job import Event, JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec, ScheduleState, Source
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    Failed,
    Finished,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    RecordItem,
    ScheduleChange,
    ScheduleEvent,
)
from jobqueue.core.unique import CONFLICTS, SCOPES, UniqueKey
from jobqueue.events.codec import UnknownRecord, decode, encode
from jobqueue.pb.jq.v1 import events_pb2 as pb

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIME = st.floats(0, 4e9)
COUNT = st.integers(0, 2**31 - 1)
BYTES = st.binary(max_size=50)

EVENTS = st.builds(
    Event,
    job_id=TEXT,
    version=st.integers(1, 2**31 - 1),
    from_state=st.none() | st.sampled_from(State),
    to_state=st.sampled_from(State),
    reason=st.sampled_from(Reason),
    at=TIME,
    attempt=COUNT,
    worker_id=st.none() | TEXT,
    detail=TEXT,
    queue=TEXT,
)
CREATED = st.builds(
    Created,
    seq=st.integers(1, 2**63 - 1),
    spec=st.builds(
        JobSpec,
        payload=BYTES,
        type=TEXT,
        priority=st.integers(0, 9),
        max_retries=COUNT,
        ttl=st.none() | TIME,
        timeout=st.none() | TIME,
        run_at=st.none() | TIME,
        key=st.none() | TEXT,
        key_owner=TEXT,
        unique=st.none()
        | st.builds(
            UniqueKey,
            key=TEXT,
            scope=st.sampled_from(SCOPES),
            period=st.none() | TIME,
            on_conflict=st.sampled_from(CONFLICTS),
            owner=TEXT,
        ),
        concurrency_key=st.none() | TEXT,
        labels=st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    created_at=TIME,
    expires_at=st.none() | TIME,
    key_expires_at=st.none() | TIME,
)
FAILED = st.builds(
    Failed, retry_count=COUNT, started_at=st.none() | TIME, next_retry_at=st.none() | TIME
)
FINISHED = st.builds(
    Finished,
    retry_count=COUNT,
    started_at=st.none() | TIME,
    result=st.none() | BYTES,
    cancel_requested=st.booleans(),
)
QUEUES = st.builds(
    Queue,
    name=TEXT,
    max_retries=COUNT,
    ttl=st.none() | TIME,
    timeout=st.none() | TIME,
    capacity=st.integers(0, 2**62),
    retry_profile=TEXT,
    retry_base=st.none() | TIME,
    retry_max=st.none() | TIME,
    retry_jitter=st.none() | st.floats(0, 1),
    priority_weights=st.none() | st.dictionaries(st.integers(0, 9), COUNT, min_size=1),
    retention=st.none() | TIME,
    dead_letter_retention=st.none() | TIME,
    max_running=st.none() | COUNT,
    rate=st.none() | COUNT,
    rate_period=st.none() | TIME,
    rate_burst=st.none() | COUNT,
    key_max_running=st.none() | COUNT,
    key_rate=st.none() | COUNT,
    key_rate_period=st.none() | TIME,
    key_rate_burst=st.none() | COUNT,
    key_weights=st.none() | st.dictionaries(TEXT, COUNT, min_size=1),
    paused=st.booleans(),
    created_at=TIME,
)


SECOND = st.integers(0, 4_000_000_000).map(float)  # times of schedules are whole seconds
SCHEDULES = st.builds(
    Schedule,
    spec=st.builds(
        ScheduleSpec,
        name=TEXT,
        job=st.builds(
            JobSpec,
            payload=BYTES,
            queue=TEXT,
            type=TEXT,
            priority=st.integers(0, 9),
            max_retries=st.none() | COUNT,
            ttl=st.none() | TIME,
            delay=st.none() | TIME,
            timeout=st.none() | TIME,
            labels=st.dictionaries(TEXT, TEXT, max_size=3),
        ),
        cron=TEXT,
        every=st.none() | COUNT,
        timezone=st.sampled_from(["UTC", "Europe/Zurich"]),
        overlap=st.sampled_from(Overlap),
        catch_up=st.none() | TIME,
    ),
    source=st.sampled_from(Source),
    created_at=SECOND,
    updated_at=SECOND,
    revision=COUNT,
    state=st.builds(
        ScheduleState,
        paused=st.booleans(),
        next_at=st.none() | SECOND,
        waiting_at=st.none() | SECOND,
        last_at=st.none() | SECOND,
        last_job_id=TEXT,
        skipped=COUNT,
        skipped_at=st.none() | SECOND,
        skipped_why=TEXT,
        problem=TEXT,
    ),
)


def of_one_queue(item: JobEvent) -> JobEvent:
    """A record names the queue of its job once."""
    if item.created is not None:
        item.created.spec.queue = item.event.queue
    return item


ITEMS = st.one_of(
    st.builds(
        JobEvent,
        event=EVENTS,
        created=st.none() | CREATED,
        failed=st.none() | FAILED,
        finished=st.none() | FINISHED,
    ).map(of_one_queue),
    st.builds(CancelRequested, job_id=TEXT, queue=TEXT, version=COUNT, at=TIME),
    st.builds(JobDeleted, job_id=TEXT, queue=TEXT, version=COUNT, at=TIME, key_freed=st.booleans()),
    st.builds(QueueEvent, change=st.sampled_from(QueueChange), queue=QUEUES, number=COUNT, at=TIME),
    st.builds(
        ScheduleEvent.of,
        change=st.sampled_from(ScheduleChange),
        schedule=SCHEDULES,
        number=COUNT,
        at=TIME,
    ),
)


@pytest.mark.req("jq:FR-037")
@given(item=ITEMS)
def test_a_record_is_read_as_it_was_written(item: RecordItem):
    assert decode(encode(item)) == item


@pytest.mark.req("jq:FR-036")
def test_an_event_has_what_the_requirement_lists():
    event = Event(
        "job", 3, State.ASSIGNED, State.RUNNING, Reason.STARTED, 12.5, 1, "worker", "", "mail"
    )
    record = pb.StreamRecord.FromString(encode(JobEvent(event))).job_event
    assert (record.event_id, record.job_id, record.queue) == ("job:3", "job", "mail")
    assert (record.from_status, record.to_status) == (2, 3)
    assert (record.timestamp, record.worker_id, record.attempt) == (12.5, "worker", 1)
    assert record.reason == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff",
        pb.StreamRecord(job_event=pb.JobEvent(job_id="x")).SerializeToString(),
        pb.StreamRecord(queue_event=pb.QueueEvent(event_id="x")).SerializeToString(),
    ],
)
def test_what_is_no_record_says_so(data: bytes):
    with pytest.raises(UnknownRecord, match="record of the event stream"):
        decode(data)
