"""Headers of the record: CloudEvents' binding for Kafka, in its binary mode.

Whoever reads the topics knows by them what a record is and which store wrote it, without its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from jobqueue.core.identity import Identity, Writer
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import CancelRequested, JobEvent, QueueChange, QueueEvent, RecordItem

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
_OF_QUEUES = {
    QueueChange.CREATED: b"jobqueue.QueueCreated",
    QueueChange.CHANGED: b"jobqueue.QueueChanged",
    QueueChange.DELETED: b"jobqueue.QueueDeleted",
}


def of_store(identity: Identity) -> Headers:
    """Those that all records of a store have."""
    return [
        ("ce_specversion", b"1.0"),
        (_SOURCE, f"{_PREFIX}{identity.store}".encode()),
        (_GENERATION, identity.generation.encode()),
        ("content-type", b"application/protobuf"),
    ]


def of_record(item: RecordItem, event_id: str, at: float) -> Headers:
    """Those of one record alone."""
    micros = round(at * 1_000_000)
    moment = f"{_second(micros // 1_000_000)}.{micros % 1_000_000:06}Z"
    return [
        ("ce_id", event_id.encode()),
        ("ce_type", _type_of(item)),
        ("ce_time", moment.encode()),
    ]


@lru_cache(maxsize=16)  # events come in the order of their times, thousands in a second
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _type_of(item: RecordItem) -> bytes:
    if isinstance(item, JobEvent):
        if item.event.from_state is None:
            return b"jobqueue.JobCreated"
        return _TYPES[item.event.to_state]
    if isinstance(item, QueueEvent):
        return _OF_QUEUES[item.change]
    if isinstance(item, CancelRequested):
        return b"jobqueue.JobCancelRequested"
    return b"jobqueue.JobDeleted"


def writer_of(headers: Iterable[tuple[str, str | bytes | None]] | None) -> Writer | None:
    """Who wrote a record with these headers; None: they do not say."""
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
