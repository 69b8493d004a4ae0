"""Entries of the streams ``events`` and ``outbox`` as records of the event stream.

What an event knows and its job may forget again (``more``) is written with it; everything else
is in the job's document for good, and is not kept twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue.core.decide import Live
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import (
    AssignmentRepeated,
    CancelRequested,
    Created,
    DeadLetter,
    Failed,
    Finished,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    Route,
    StreamItem,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import Fields, Value, fields, moment, number, text

_WORKERS = {f"worker_{change.name.lower()}".encode(): change for change in WorkerChange}
_QUEUES = {f"queue_{change.name.lower()}".encode(): change for change in QueueChange}


def more_of(state: State, live: Live) -> str:
    """What an event into a state has to keep of the job, as it was just decided."""
    if state is State.FAILED:
        due = live.due if live.state is State.FAILED else None
        said = {"retry_count": live.retry_count, "started_at": live.started_at, "due": due}
    elif state is State.DEAD_LETTERED:
        said = {
            "retry_count": live.retry_count,
            "started_at": live.started_at,
            "cancel_requested": live.cancel_requested or None,
        }
    else:
        return ""
    return as_more(said)


def as_more(said: Mapping[str, Any]) -> str:
    """What an event keeps, as it is written; what is None is left out."""
    kept = {name: value for name, value in said.items() if value is not None}
    return json.dumps(kept, separators=(",", ":")) if kept else ""


def item(place: tuple[int, int], flat: Sequence[bytes], parts: Sequence[Value] = ()) -> StreamItem:
    """A row of ``scripts/changes.lua``."""
    found = fields(flat)
    if b"kind" in found:
        return _beside(place[1], found)
    return _job_event(found, parts)


def _job_event(found: Fields, parts: Sequence[Value]) -> JobEvent:
    event = documents.event(found)
    more: dict[str, Any] = json.loads(found[b"more"]) if found[b"more"] else {}
    made = JobEvent(event)
    if event.version == 1:
        made.created = _created(event.queue, event.at, more.get("run_at"), parts)
    elif event.to_state is State.FAILED:
        made.failed = Failed(more["retry_count"], more.get("started_at"), more.get("due"))
    elif event.to_state is State.DEAD_LETTERED:
        made.finished = Finished(
            more["retry_count"], more.get("started_at"), None, more.get("cancel_requested", False)
        )
        kind, payload = parts
        made.letter = DeadLetter(text(kind) or "", payload or b"")
    elif event.to_state is State.DONE:  # nothing comes after it
        retry_count, started_at, result = parts
        made.finished = Finished(int(retry_count or 0), number(started_at), result)
    elif "partition" in more:
        made.route = Route(more["partition"], more["incarnation"])
    return made


def _created(queue: str, at: float, run_at: float | None, parts: Sequence[Any]) -> Created:
    seq, created_at, *fields, key_expires_at = parts
    planned = None if run_at is None else float(run_at)
    asked = documents.spec(queue.encode(), planned, *fields)
    return Created(
        seq=int(seq),
        spec=asked,
        created_at=moment(created_at),
        expires_at=None if asked.ttl is None else at + asked.ttl,
        key_expires_at=number(key_expires_at),
    )


def _beside(entry: int, found: Fields) -> StreamItem:
    kind, at = found[b"kind"], float(found[b"at"])
    change = _QUEUES.get(kind)
    if change is not None:
        return QueueEvent(change, documents.queue(found), entry, at)
    if kind in _WORKERS:
        worker_id = found[b"worker_id"].decode()
        return WorkerEvent(_WORKERS[kind], worker_id, int(found[b"incarnation"]), at)
    job_id, queue = found[b"job_id"].decode(), found[b"queue"].decode()
    if kind == b"repeated":
        return AssignmentRepeated(
            job_id,
            queue,
            int(found[b"seq"]),
            int(found[b"attempt"]),
            found[b"worker_id"].decode(),
            Route(int(found[b"partition"]), int(found[b"incarnation"])),
            at,
        )
    version = int(found[b"version"])
    if kind == b"cancel":
        return CancelRequested(job_id, queue, version, at)
    return JobDeleted(job_id, queue, version, at, found[b"key_freed"] == b"1")
