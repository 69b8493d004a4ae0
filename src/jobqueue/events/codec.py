"""Encode the records of the event stream and their Kafka headers, and decode them.

The headers follow the Kafka binding of CloudEvents in binary mode. From the headers alone, a reader
of the topics knows the kind of a record and the store that wrote the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from google.protobuf.message import DecodeError

from jobqueue.core.identity import Identity, Writer
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.schedule import ScheduleState
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    DeadLetter,
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
from jobqueue.pb.jq.v1 import events_pb2 as pb
from jobqueue.pb.jq.v1 import schedules_pb2
from jobqueue.pb.jq.v1 import types_pb2 as types
from jobqueue.wire import (
    message_fields,
    put_settings,
    read_settings,
    read_spec,
    record_fields,
    schedule_from_pb,
    schedule_state_to_pb,
    schedule_to_pb,
)

_STATES = {state: types.JobState.Value(f"JOB_STATE_{state.name}") for state in State}
_REASONS = {reason: types.Reason.Value(f"REASON_{reason.name}") for reason in Reason}
_CHANGES = {one: pb.QueueChange.Value(f"QUEUE_CHANGE_{one.name}") for one in QueueChange}
_SCHEDULE_CHANGES = {
    one: pb.ScheduleChange.Value(f"SCHEDULE_CHANGE_{one.name}") for one in ScheduleChange
}
_STATE_OF: dict[int, State] = {number: state for state, number in _STATES.items()}
_REASON_OF: dict[int, Reason] = {number: reason for reason, number in _REASONS.items()}
_CHANGE_OF: dict[int, QueueChange] = {number: one for one, number in _CHANGES.items()}
_SCHEDULE_CHANGE_OF: dict[int, ScheduleChange] = {
    number: one for one, number in _SCHEDULE_CHANGES.items()
}


class UnknownRecord(ValueError):
    """Raised for bytes that are not a record of the event stream, or are from a newer version."""


def encode(item: RecordItem, *, letter: bool = False) -> bytes:
    """Encode a record as bytes.

    With ``letter``, a dead letter's type and payload are included, for the dead-letter topic.
    """
    record = pb.StreamRecord()
    if isinstance(item, JobEvent):
        _put_job_event(record.job_event, item)
        if letter and item.letter is not None:
            record.job_event.dead_letter.CopyFrom(
                pb.DeadLetter(type=item.letter.type, payload=item.letter.payload)
            )
    elif isinstance(item, QueueEvent):
        record.queue_event.CopyFrom(_queue_event(item))
    elif isinstance(item, ScheduleEvent):
        record.schedule_event.CopyFrom(_schedule_event(item))
    elif isinstance(item, CancelRequested):
        flag = record.cancel_requested
        flag.event_id, flag.job_id, flag.queue = item.event_id, item.job_id, item.queue
        flag.timestamp, flag.version = item.at, item.version
    else:
        gone = record.job_deleted
        gone.event_id, gone.job_id, gone.queue = item.event_id, item.job_id, item.queue
        gone.timestamp, gone.version = item.at, item.version
        gone.key_freed = item.key_freed
    return record.SerializeToString()


def _put_job_event(record: pb.JobEvent, item: JobEvent) -> None:
    # Fills the given message: most records are job events, and a copy would double the cost.
    event = item.event
    record.event_id = item.event_id
    record.job_id = event.job_id
    record.queue = event.queue
    if event.from_state is not None:
        record.from_status = _STATES[event.from_state]
    record.to_status = _STATES[event.to_state]
    record.timestamp = event.at
    if event.worker_id is not None:
        record.worker_id = event.worker_id
    record.reason = _REASONS[event.reason]
    record.attempt = event.attempt
    record.version = event.version
    if event.detail:
        record.detail = event.detail
    if item.created is not None:
        record.created.CopyFrom(_created(item.created))
    if item.failed is not None:
        record.failed.CopyFrom(
            pb.JobFailed(
                error=event.detail,
                next_retry_at=item.failed.next_retry_at,
                retry_count=item.failed.retry_count,
                started_at=item.failed.started_at,
            )
        )
    if item.finished is not None:
        record.finished.CopyFrom(
            pb.JobFinished(
                result=item.finished.result,
                started_at=item.finished.started_at,
                retry_count=item.finished.retry_count,
                cancel_requested=item.finished.cancel_requested,
            )
        )


def _created(created: Created) -> pb.JobCreated:
    return pb.JobCreated(
        expires_at=created.expires_at,
        key_expires_at=created.key_expires_at,
        created_at=created.created_at,
        seq=created.seq,
        **message_fields(created.spec, pb.JobCreated),
    )


def _queue_event(item: QueueEvent) -> pb.QueueEvent:
    queue = item.queue
    record = pb.QueueEvent(
        event_id=item.event_id,
        change=_CHANGES[item.change],
        queue=types.Queue(name=queue.name, paused=queue.paused),
        timestamp=item.at,
        created_at=queue.created_at,
    )
    put_settings(record.queue, queue.settings())
    return record


def _schedule_event(item: ScheduleEvent) -> pb.ScheduleEvent:
    if item.schedule is None:
        state = schedule_state_to_pb(item.state)
        schedule = schedules_pb2.Schedule(state=state, revision=item.revision)
    else:
        schedule = schedule_to_pb(item.schedule)
    return pb.ScheduleEvent(
        event_id=item.event_id,
        change=_SCHEDULE_CHANGES[item.change],
        name=item.name,
        timestamp=item.at,
        schedule=schedule,
    )


def decode(data: bytes | None) -> RecordItem:
    """Decode a record. Raise UnknownRecord if the bytes are not a record known here."""
    if data is None:
        raise UnknownRecord("not a record of the event stream: a tombstone (no value)")
    try:
        record = pb.StreamRecord.FromString(data)
        kind = record.WhichOneof("record")
        if kind == "job_event":
            return _read_job_event(record.job_event)
        if kind == "queue_event":
            return _read_queue_event(record.queue_event)
        if kind == "schedule_event":
            return _read_schedule_event(record.schedule_event)
        if kind == "cancel_requested":
            flag = record.cancel_requested
            return CancelRequested(flag.job_id, flag.queue, flag.version, flag.timestamp)
        if kind == "job_deleted":
            gone = record.job_deleted
            return JobDeleted(gone.job_id, gone.queue, gone.version, gone.timestamp, gone.key_freed)
    except (KeyError, ValueError, DecodeError) as error:
        raise UnknownRecord(f"not a record of the event stream: {error}") from error
    raise UnknownRecord(
        "not a record of the event stream, or a record that a newer version of jobqueue wrote"
    )


def _read_job_event(record: pb.JobEvent) -> JobEvent:
    event = Event(
        record.job_id,
        record.version,
        None if not record.from_status else _STATE_OF[record.from_status],
        _STATE_OF[record.to_status],
        _REASON_OF[record.reason],
        record.timestamp,
        record.attempt,
        record.worker_id if record.HasField("worker_id") else None,
        record.detail,
        record.queue,
    )
    item = JobEvent(event)
    if record.HasField("created"):
        item.created = _read_created(record.created, record.queue)
    if record.HasField("failed"):
        failed = record.failed
        item.failed = Failed(
            failed.retry_count,
            failed.started_at if failed.HasField("started_at") else None,
            failed.next_retry_at if failed.HasField("next_retry_at") else None,
        )
    if record.HasField("finished"):
        finished = record.finished
        item.finished = Finished(
            finished.retry_count,
            finished.started_at if finished.HasField("started_at") else None,
            finished.result if finished.HasField("result") else None,
            finished.cancel_requested,
        )
    if record.HasField("dead_letter"):
        item.letter = DeadLetter(record.dead_letter.type, record.dead_letter.payload)
    return item


def _read_created(record: pb.JobCreated, queue: str) -> Created:
    return Created(
        seq=record.seq,
        spec=read_spec(record, queue=queue),
        created_at=record.created_at,
        expires_at=record.expires_at if record.HasField("expires_at") else None,
        key_expires_at=record.key_expires_at if record.HasField("key_expires_at") else None,
    )


def _read_queue_event(record: pb.QueueEvent) -> QueueEvent:
    said = record.queue
    queue = Queue(
        name=said.name, paused=said.paused, created_at=record.created_at, **read_settings(said)
    )
    number = int(record.event_id.rpartition(":")[2])
    return QueueEvent(_CHANGE_OF[record.change], queue, number, record.timestamp)


def _read_schedule_event(record: pb.ScheduleEvent) -> ScheduleEvent:
    said = record.schedule
    return ScheduleEvent(
        change=_SCHEDULE_CHANGE_OF[record.change],
        name=record.name,
        number=int(record.event_id.rpartition(":")[2]),
        at=record.timestamp,
        state=ScheduleState(**record_fields(said.state, ScheduleState)),
        revision=said.revision,
        schedule=schedule_from_pb(said) if said.HasField("spec") else None,
    )


Headers = list[tuple[str, bytes]]

_SOURCE, _GENERATION = "ce_source", "ce_generation"
_PREFIX = "urn:jobqueue:"
_TYPES = {
    State.PENDING: b"jobqueue.JobRequeued",
    State.ASSIGNED: b"jobqueue.JobAssigned",
    State.RUNNING: b"jobqueue.JobStarted",
    State.DONE: b"jobqueue.JobCompleted",
    State.FAILED: b"jobqueue.JobFailed",
    State.DEAD_LETTERED: b"jobqueue.JobDeadLettered",
}
_QUEUE_TYPES = {
    QueueChange.CREATED: b"jobqueue.QueueCreated",
    QueueChange.CHANGED: b"jobqueue.QueueChanged",
    QueueChange.DELETED: b"jobqueue.QueueDeleted",
}
_SCHEDULE_TYPES = {
    ScheduleChange.CREATED: b"jobqueue.ScheduleCreated",
    ScheduleChange.CHANGED: b"jobqueue.ScheduleChanged",
    ScheduleChange.TICKED: b"jobqueue.ScheduleTicked",
    ScheduleChange.REMOVED: b"jobqueue.ScheduleRemoved",
}


def store_headers(identity: Identity) -> Headers:
    return [
        ("ce_specversion", b"1.0"),
        (_SOURCE, f"{_PREFIX}{identity.store}".encode()),
        (_GENERATION, identity.generation.encode()),
        ("content-type", b"application/protobuf"),
    ]


def record_headers(item: RecordItem, event_id: str, at: float) -> Headers:
    micros = round(at * 1_000_000)
    moment = f"{_second(micros // 1_000_000)}.{micros % 1_000_000:06}Z"
    return [("ce_id", event_id.encode()), ("ce_type", _type_of(item)), ("ce_time", moment.encode())]


@lru_cache(maxsize=16)  # events come in order of time, and thousands of events share a second
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _type_of(item: RecordItem) -> bytes:
    if isinstance(item, JobEvent):
        if item.event.from_state is None:
            return b"jobqueue.JobCreated"
        return _TYPES[item.event.to_state]
    if isinstance(item, QueueEvent):
        return _QUEUE_TYPES[item.change]
    if isinstance(item, ScheduleEvent):
        return _SCHEDULE_TYPES[item.change]
    if isinstance(item, CancelRequested):
        return b"jobqueue.JobCancelRequested"
    return b"jobqueue.JobDeleted"


def writer_of(headers: Iterable[tuple[str, str | bytes | None]] | None) -> Writer | None:
    """Return the store that wrote a record, or None if the record's headers do not name a store."""
    source = generation = None
    for name, value in headers or ():
        if name == _SOURCE:
            source = _text(value)
        elif name == _GENERATION:
            generation = _text(value)
    if not source or not generation or not source.startswith(_PREFIX):
        return None
    return Writer(source.removeprefix(_PREFIX), generation)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
